"""Discovery: what NVIDIA hardware this node has, and the cheap probe that shows whether it changed.

In: roots, and the use of the library. Out: `Facts` and fingerprints. It never raises for one bad GPU. It raises
`hardware.driver-changed` when this process's library no longer fits the kernel's driver, which only a new process
(re-exec) can solve.
"""

from __future__ import annotations

import time

from dra_driver.hardware.facts import Facts, GpuFacts
from dra_driver.hardware.nvidia import library, sysfs
from dra_driver.hardware.nvidia.library_use import LibraryUse, bus_seen
from dra_driver.hardware.nvidia.node_facts import VENDOR, NodeFacts
from dra_driver.hardware.nvidia.opening import NotOpen
from dra_driver.hardware.port import Fingerprint, Roots
from dra_driver.model.errors import HardwareError, Retry

PROBE_S = 0.5  # the longest that a fingerprint takes, whatever hangs
RETRY_S = 3.0  # the interval at which opening a library that could not be opened is tried again


class Discovery:
    """Finds the GPUs of this node.

    Args:
        roots: where the node's trees are.
        use: the use of the library, opened and released here under its lock.
        overdue_s: a call in flight for longer, in seconds, makes its GPU "not answering".
        patience_s: how long to wait, in seconds, for slow GPUs once another has answered.
    """

    def __init__(self, roots: Roots, use: LibraryUse, *, overdue_s: float, patience_s: float) -> None:
        self._roots = roots
        self._use = use
        self._overdue_s = overdue_s
        self._patience_s = patience_s
        self._known = NodeFacts(roots, overdue_s)
        self._is_waiting = False

    @property
    def driver_version(self) -> str | None:
        """Return the version of the driver that was seen last, as the kernel or the library spells it."""
        return sysfs.read_driver_version(self._roots) or self._known.driver_version

    def is_present(self) -> bool:
        """Return whether there is a GPU on the PCI bus or, where no bus is visible, traces of a driver."""
        return (
            bool(sysfs.read_pci_functions(self._roots))
            or sysfs.has_driver_traces(self._roots)
            or any(library.in_library_path())
            or (library.has_own_mount(self._roots) and any(library.below_mount(self._roots)))
        )

    def is_gone(self, gpu: GpuFacts) -> bool:
        """Return whether a GPU has left the bus, or there is no GPU here at all."""
        if self._known.is_hidden_from_bus(gpu):
            return False
        addresses = {function.address for function in sysfs.read_pci_functions(self._roots)}
        return gpu.pci_address not in addresses if addresses else not self.is_present()

    def discover(self) -> Facts:
        """Read everything and return it; the caller holds the lock of the library's use.

        Raises: HardwareError("hardware.driver-changed", retry LATER): a new process must replace this one.
        """
        if not self.is_present():
            self._use.release()
            return Facts(VENDOR)
        if self._use.is_outdated:
            self._use.release()
            raise HardwareError(
                "driver-changed",
                "the NVIDIA driver was replaced after this process had loaded its library",
                hint="the process has to be restarted to load the new library",
                retry=Retry.LATER,
            )
        try:
            session = self._use.open(is_renewed=bool(self._known.lost))
        except NotOpen as reason:
            if not reason.is_late:
                self._use.release()
            self._is_waiting = True
            return self._known.waiting(reason)
        session.read_gpus(self._patience_s, self._overdue_s)
        facts = self._known.read(session)
        self._is_waiting = False
        return facts

    def fingerprint(self) -> Fingerprint:
        """Return a value that changes when `discover` would return something else. Never opens the library."""
        nodes = sysfs.read_nodes(self._roots)
        caps = tuple(node for node in nodes if node[0].startswith("nvidia-caps/"))
        others = tuple(node for node in nodes if not node[0].startswith("nvidia-caps/"))
        files = (
            bus_seen(self._roots, others),
            others,
            sysfs.read_majors(self._roots),
            sysfs.read_driver_version(self._roots),
            self._use.is_outdated,
        )
        session = self._use.session
        probed, mig = session.probe(PROBE_S, self._overdue_s) if session is not None else (None, ())
        if not self._is_waiting:
            return Fingerprint((files, probed), mig, caps)
        found = tuple(library.library_file(path) for path in library.candidates(self._roots))
        return Fingerprint((files, probed, found, int(time.monotonic() / RETRY_S)), mig, caps)

    def end(self) -> None:
        """Shut the library down; calls do not wait for it until the next `discover`.

        The caller holds the lock of the library's use.
        """
        self._is_waiting = False
        self._use.release()
