"""A backend: a worker process, the reader that feeds it, and the pages that show its answers.

In: messages of the worker. Out: notices for pages, and answers. A console on the loopback address has one backend; one
in a cluster has one for all viewers whose rights are equal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dra_driver.model.errors import DriverError, ExitCode, NodeError
from dra_driver.web.api import ConsoleApi
from dra_driver.web.cluster_reader import ClusterReader, ReadAccess
from dra_driver.web.events import Notices
from dra_driver.web.lookups.lookups import ViewerLookups
from dra_driver.web.on_demand_reading import OnDemandReading
from dra_driver.web.worker.client import WorkerClient

_GONE = "the process that holds the fleet has ended"


class Backend:
    """The parts that answer the pages of one viewer, or of all viewers with equal rights.

    `ended` is called once the worker is gone; `fault` then says why.
    """

    def __init__(
        self, worker: WorkerClient, access: ReadAccess | None, lookups: ViewerLookups, ended: Callable[[], None]
    ) -> None:
        rights = lookups.rights
        self.worker, self.notices = worker, Notices()
        self.reader = ClusterReader(access, worker.send, rights) if access is not None else None
        self.reading = OnDemandReading(self.reader, self.notices) if self.reader is not None else None
        self.api = ConsoleApi(worker, self.notices, self.reader, lookups)
        self.fault: DriverError | None = None
        self._ended = ended

    def on_message(self, message: tuple[Any, ...] | None) -> None:
        """Handle a message of the worker; None means that its process has ended."""
        match message:
            case None:
                self.fault = self.fault or NodeError("desk-gone", _GONE, hint="the lines above may say why")
                self.notices.end()
                self._ended()
            case ("fault", code, text, hint, status):
                self.fault = _LoadError(code, text, hint, status)
            case ("progress", noun, done, total):
                self.notices.post("progress", {"noun": noun, "done": done, "total": total})
            case ("ready", version):
                self.notices.post("state", "ready")
                self.notices.post("version", version)
            case ("version", version):
                self.notices.post("version", version)

    def close(self) -> None:
        """End the reading, the streams and the worker."""
        self.notices.end()
        if self.reader is not None:
            self.reader.stop()
        self.worker.close()


class _LoadError(DriverError):
    """A fault that the worker reported while it loaded."""

    def __init__(self, code: str, message: str, hint: str, status: int) -> None:
        super().__init__(code, message, hint=hint)
        self.code, self.exit_code = code, ExitCode(status)
