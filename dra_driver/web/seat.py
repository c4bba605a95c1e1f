"""A seat: a desk, what is read for it, and the pages that show it.

In: messages of the desk. Out: notices for pages, and answers. A console on the loopback address has one seat; one in a
cluster has one for all viewers whose rights are equal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dra_driver.model.errors import DriverError, ExitCode, NodeError
from dra_driver.web.api import ConsoleApi
from dra_driver.web.cluster_reader import ClusterReader, ReadAccess
from dra_driver.web.desk.line import DeskLine
from dra_driver.web.events import Notices
from dra_driver.web.looking import Looking
from dra_driver.web.lookups.lookups import ViewerLookups

_GONE = "the process that holds the fleet has ended"


class Seat:
    """`ended` is called once the desk is gone; `fault` then says why."""

    def __init__(
        self, desk: DeskLine, access: ReadAccess | None, lookups: ViewerLookups, ended: Callable[[], None]
    ) -> None:
        rights = lookups.rights
        self.desk, self.notices = desk, Notices()
        self.reader = ClusterReader(access, desk.send, rights) if access is not None else None
        self.looking = Looking(self.reader, self.notices) if self.reader is not None else None
        self.api = ConsoleApi(desk, self.notices, self.reader, lookups)
        self.fault: DriverError | None = None
        self._ended = ended

    def heard(self, message: tuple[Any, ...] | None) -> None:
        """Handle a message of the desk; None says that its process has ended."""
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
        """End the reading, the streams and the desk."""
        self.notices.end()
        if self.reader is not None:
            self.reader.stop()
        self.desk.close()


class _LoadError(DriverError):
    """A fault that the desk met while it loaded, as it was told of it."""

    def __init__(self, code: str, message: str, hint: str, status: int) -> None:
        super().__init__(code, message, hint=hint)
        self.code, self.exit_code = code, ExitCode(status)
