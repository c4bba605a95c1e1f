"""Reading on demand: the cluster is watched while a page is open, and some minutes longer.

In: a reader, and the notices, which know how many pages are open. Out: the reader is started and stopped, and a notice
says why the cluster does not answer. Both are checked twice a second.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from dra_driver.model.errors import DriverError
from dra_driver.web.cluster_reader import ClusterReader
from dra_driver.web.events import Notices

UNSEEN_SECONDS = 300.0  # after the last page was closed
_SECONDS = 0.5


@dataclass(slots=True)
class OnDemandReading:
    """Starts a reader when a page is opened, and stops it some minutes after the last one was closed."""

    reader: ClusterReader
    notices: Notices
    _seen_at: float = 0.0
    _fault: str = ""

    async def run(self) -> None:
        """Start and stop the reader until cancelled."""
        while True:
            if self.notices.streams:
                self._seen_at = time.monotonic()
                if not self.reader.is_reading:
                    self._start()
            elif self.reader.is_reading and time.monotonic() - self._seen_at > UNSEEN_SECONDS:
                self.reader.stop()
            self._post_fault(self.reader.fault if self.reader.is_reading else self._fault)
            await asyncio.sleep(_SECONDS)

    def _start(self) -> None:
        try:
            self.reader.start()
        except DriverError as fault:
            self._post_fault(fault.message)

    def _post_fault(self, fault: str) -> None:
        if fault != (self.notices.latest("cluster") or ""):
            self._fault = fault
            self.notices.post("cluster", fault)
