"""This process's use of NVIDIA's library: opened when there is a GPU, and again when the bus changed.

In: roots, and the longest that a call may take. Out: the open session, or `NotOpen` with what this node waits for. If a
call in flight prevents the library from being shut down, that is done later.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Hashable
from concurrent.futures import Future
from functools import partial

from dra_driver.hardware.nvidia import sysfs
from dra_driver.hardware.nvidia.nvml.fault import NvmlFault
from dra_driver.hardware.nvidia.observation.observation import Observation
from dra_driver.hardware.nvidia.opening import LATE, NotOpen, Opened, open_library
from dra_driver.hardware.nvidia.session import NvmlSession
from dra_driver.hardware.nvidia.worker import Worker, ended
from dra_driver.hardware.port import Roots
from dra_driver.model.errors import NodeError
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)


class LibraryUse:
    """The session that is open, and those that are being closed. The caller holds `lock` while it opens or closes one.

    Args:
        roots: where the node's trees are.
        overdue_s: how long a call may take, in seconds.
        observation: what watches each session from its beginning to its end.
    """

    def __init__(self, roots: Roots, overdue_s: float, observation: Observation) -> None:
        self._roots = roots
        self._overdue_s = overdue_s
        self._observation = observation
        self._driver = Worker("nvml")
        self._opening: Future[Opened] | None = None
        self._opened: Opened | None = None
        self.lock = threading.Lock()
        self.session: NvmlSession | None = None
        self.leaving: list[NvmlSession] = []

    @property
    def is_outdated(self) -> bool:
        """Return whether the driver was replaced since this process first used its library (reads files only)."""
        return self._opened is not None and self._opened.is_outdated(self._roots)

    @property
    def is_closed(self) -> bool:
        """Return whether this process has no GPU open."""
        return self.session is None and not self.leaving and self._opening is None

    def open(self, *, is_renewed: bool) -> NvmlSession:
        """Return the open session, after it has counted its GPUs.

        It is opened again when the bus changed, or when `is_renewed` because a GPU that was lost may be back, unless a
        call is in flight.

        Raises: NotOpen.
        """
        bus = bus_seen(self._roots, sysfs.read_nodes(self._roots))
        session = self.session
        if session is not None and (session.bus != bus or is_renewed) and not session.has_calls_in_flight():
            self.release()
        if self.session is None:
            self._open()
            self.session = NvmlSession(self._roots, self._driver, bus)
            try:
                self._observation.watch(self.session)
            except NodeError:  # a session that is not watched would look healthy
                self.release()
                raise
        self._count(self.session)
        return self.session

    def release(self) -> None:
        """Shut the library down as often as it was initialised; what a call in flight prevents is retried next time."""
        if self.session is not None:
            self.leaving.append(self.session)
            self._observation.leave(self.session)
        self.session = None
        self.leaving = [session for session in self.leaving if not session.close(self._overdue_s)]
        if self.leaving:
            log.warning("library not released because a call is in flight", extra=fields(vendor="nvidia"))

    def _open(self) -> None:
        if self._opening is None:
            self._opening = self._driver.submit(partial(open_library, self._roots, self._driver))
        if not ended(self._opening, self._overdue_s):
            raise NotOpen(LATE, f"NVML, which has not returned from {self._driver.waits_for()[0]}")
        opening, self._opening = self._opening, None
        try:
            self._opened = opening.result()
        except NotOpen as reason:
            self._opened = reason.loaded
            raise

    def _count(self, session: NvmlSession) -> None:
        try:
            state = session.read_state(self._overdue_s)
        except NvmlFault as fault:
            raise NotOpen("library-failed", f"NVML to answer; it reports {fault}") from fault
        if state is None:
            raise NotOpen(LATE, f"NVML, which does not answer {self._driver.waits_for()[0]}")


def bus_seen(roots: Roots, nodes: tuple[tuple[str, int], ...]) -> Hashable:
    """Return the state that the library reads only during initialisation.

    This is the GPUs on the bus, those that the driver drives, and the GPUs' nodes. `nodes` are those of
    `sysfs.read_nodes`, with or without the nodes of capabilities.
    """
    names_of_gpus = tuple(name for name, _ in nodes if name.removeprefix("nvidia").isdecimal())
    return sysfs.read_pci_functions(roots), sysfs.read_driven_gpus(roots), names_of_gpus
