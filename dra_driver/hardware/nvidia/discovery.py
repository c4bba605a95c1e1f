"""Discovery: what NVIDIA hardware this node has, and the cheap probe that shows whether it changed.

In: roots, and the longest that a call may take. Out: `Facts`, in which every GPU on the bus is a GPU or a problem, and
fingerprints. The library is opened when there is a GPU, and again when the bus changed; if a call in flight prevents it
from being shut down, that is done later. What a later reading can't show is remembered: the links of a GPU whose MIG
mode hides them, the version of an unloaded driver.

Discovery never raises for one bad GPU. It raises `hardware.driver-changed` when this process's library no longer fits
the kernel's driver, which only a new process (re-exec) can solve.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Hashable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

from dra_driver.base.errors import HardwareError, NodeError, Retry
from dra_driver.base.telemetry.logs import fields
from dra_driver.hardware.facts import Facts, GpuFacts, Problem, mixed_mig_problems
from dra_driver.hardware.nvidia import library
from dra_driver.hardware.nvidia import library as sysfs
from dra_driver.hardware.nvidia.edits.nodes import is_missing
from dra_driver.hardware.nvidia.gpu_reading import Edge, GpuReading, join_gpus
from dra_driver.hardware.nvidia.instances import Worker, ended
from dra_driver.hardware.nvidia.library import LATE, NotOpen, Opened, PciFunction, open_library
from dra_driver.hardware.nvidia.mig_reading import cuda_version, strict_version
from dra_driver.hardware.nvidia.observation import Observation
from dra_driver.hardware.nvidia.published import NvidiaGpu
from dra_driver.hardware.nvidia.queries import NvmlFault
from dra_driver.hardware.nvidia.session import GpuWorker, NvmlSession
from dra_driver.hardware.port import Fingerprint, Roots

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


VENDOR = "nvidia"
_EVERY = 10**6  # more GPUs than any node has


class NodeFacts:
    """What is known of the node's GPUs. A GPU whose call is in flight for `overdue_s` seconds does not answer."""

    def __init__(self, roots: Roots, overdue_s: float) -> None:
        self._roots = roots
        self._overdue_s = overdue_s
        self._edges: set[Edge] = set()
        self._not_on_bus: frozenset[str] = frozenset()  # GPUs that the library reported while sysfs did not show them
        self.lost: frozenset[str] = frozenset()
        self.driver_version: str | None = None

    def read(self, session: NvmlSession) -> Facts:
        """Return the facts that the readings of a session add up to, and remember what later ones may not show."""
        state = session.state
        readings, problems = self._readings(session.gpus)
        problems = self._problems(readings, problems)
        self._remember(readings)
        self.driver_version = state.driver_version
        gpus = join_gpus(readings, self._edges)
        version = strict_version(state.driver_version) if state.driver_version else None
        problems += mixed_mig_problems(gpus, version)
        return Facts(
            vendor=VENDOR,
            gpus=gpus,
            driver_version=version,
            runtime_version=cuda_version(state.cuda_version) if state.cuda_version else None,
            problems=(*state.problems, *sorted(problems, key=lambda p: (p.subject, p.code, p.message))),
        )

    def waiting(self, reason: NotOpen) -> Facts:
        """Return the facts of a node whose library can't be used: no GPU, and why."""
        problems = unreported(sysfs.read_pci_functions(self._roots), (), silent=_EVERY)
        return Facts(
            VENDOR,
            problems=(Problem(reason.code, "node", f"waiting for {reason.text}"), *problems),
            waiting_for=reason.text,
        )

    def is_hidden_from_bus(self, gpu: GpuFacts) -> bool:
        """Return whether sysfs did not show a GPU that the library knew; its absence there then proves nothing."""
        return gpu.pci_address in self._not_on_bus

    def _readings(self, gpus: list[GpuWorker]) -> tuple[list[GpuReading], list[Problem]]:
        """Return the reading of each GPU that has one, and a problem for each that does not answer."""
        readings: list[GpuReading] = []
        problems: list[Problem] = []
        for index, gpu in enumerate(gpus):
            call, _ = gpu.worker.waits_for()
            is_late = gpu.is_reading
            if is_late and (gpu.last is None or gpu.is_overdue(self._overdue_s)):
                subject = gpu.last.address if gpu.last and gpu.last.address else "node"
                text = f"GPU at index {index} does not answer {call or 'yet'}"
                problems.append(Problem("hardware.gpu-not-answering", subject, text))
            elif gpu.last is not None and gpu.last.address in {r.address for r in readings if r.address}:
                text = f"another GPU has this PCI address too: the one at index {index} is left out"
                problems.append(Problem("hardware.address-shared", str(gpu.last.address), text))
            elif gpu.last is not None:
                readings.append(gpu.last)
                problems.extend(gpu.last.problems)
        return readings, problems

    def _problems(self, readings: list[GpuReading], problems: list[Problem]) -> list[Problem]:
        """Return the problems of single readings, and those that only show when all GPUs are looked at together."""
        answered = [*(r.address for r in readings if r.address), *(p.subject for p in problems)]
        functions = sysfs.read_pci_functions(self._roots)
        silent = sum(problem.subject == "node" for problem in problems)
        return [
            *name_silent(problems, functions, answered),
            *unreported(functions, answered, silent=silent),
            *shared_identities(readings),
            *self._without_nodes(readings),
        ]

    def _without_nodes(self, readings: list[GpuReading]) -> list[Problem]:
        """Return a problem for each GPU whose device node does not exist yet, since no container can open it."""
        found = (reading.facts for reading in readings if reading.facts is not None)
        lost = [gpu for gpu in found if is_missing(self._roots, f"nvidia{gpu.minor}")]
        text = "the device node /dev/nvidia{} does not exist: claims of this GPU fail until it does"
        return [Problem("hardware.node-missing", gpu.pci_address, text.format(gpu.minor)) for gpu in lost]

    def _remember(self, readings: list[GpuReading]) -> None:
        on_bus = {function.address for function in sysfs.read_pci_functions(self._roots)}
        self.lost = frozenset(r.address or str(r.index) for r in readings if r.is_lost)
        self._not_on_bus = frozenset(filter(None, (r.address for r in readings))) - on_bus
        self._edges.update(edge for reading in readings for edge in reading.links.edges)


PROBE_S = 0.5  # the longest that a fingerprint takes, whatever hangs
RETRY_S = 3.0  # the interval at which opening a library that could not be opened is tried again


def shared_identities(readings: Iterable[GpuReading]) -> tuple[Problem, ...]:
    """Return a problem for each GPU that has the same minor or UUID as another.

    Containers can't tell such GPUs apart, and may be given the same one.
    """
    by_identity: dict[str, list[NvidiaGpu]] = {}
    for gpu in (reading.facts for reading in readings):
        if gpu is not None:
            for identity in (f"minor {gpu.minor}", f"UUID {gpu.uuid}"):
                by_identity.setdefault(identity, []).append(gpu)
    return tuple(
        Problem("hardware.identity-shared", gpu.pci_address, f"GPU reports {identity}, and so does another GPU")
        for identity, gpus in by_identity.items()
        if len(gpus) > 1
        for gpu in gpus
    )


def unreported(functions: Sequence[PciFunction], answered: Iterable[str], *, silent: int) -> tuple[Problem, ...]:
    """Return a problem for each GPU on the bus that the library does not report.

    `silent` is the number of GPUs that the library counts but whose address it did not report. They have a problem
    already, so up to as many GPUs on the bus, which may be the same ones, are not reported a second time.
    """
    known = set(answered)
    missing = [f for f in functions if f.address not in known and not f.is_virtual]
    foreign = [f for f in missing if f.driver != "nvidia"]
    driven = [f for f in missing if f.driver == "nvidia"]
    problems = [
        Problem("hardware.gpu-not-driven", f.address, f"GPU is bound to {f.driver or 'no driver'}, not to nvidia")
        for f in foreign
    ]
    if len(driven) > silent:
        problems += [
            Problem("hardware.gpu-not-reported", f.address, "GPU is on the PCI bus but the driver does not report it")
            for f in driven
        ]
    return tuple(problems)


def name_silent(
    problems: Sequence[Problem], functions: Sequence[PciFunction], answered: Iterable[str]
) -> list[Problem]:
    """Return the problems, with the address filled in where one GPU reported none and only one address is left."""
    known = set(answered)
    left = [f.address for f in functions if f.driver == "nvidia" and f.address not in known and not f.is_virtual]
    nameless = [p for p in problems if p.subject == "node"]
    if len(left) == 1 and len(nameless) == 1:
        return [replace(p, subject=left[0]) if p.subject == "node" else p for p in problems]
    return list(problems)


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
