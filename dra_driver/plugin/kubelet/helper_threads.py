"""Helper threads: a pool whose tasks the caller does itself where no thread can be started for them."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor

from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)


class HelperThreads(ThreadPoolExecutor):
    """A pool that accepts a task also if it can't start a thread for it.

    The task waits for a thread that there is. Who has submitted it cancels it if it was not needed. (The base class
    raises an error in that case, but keeps the task, which may then run although nobody waits for it.)
    """

    def _adjust_thread_count(self) -> None:
        try:
            super()._adjust_thread_count()
        except RuntimeError as error:
            log.warning("no thread could be started for a further claim", extra=fields(err=str(error)))
