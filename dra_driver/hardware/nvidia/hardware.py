"""NVIDIA behind the hardware port.

In: roots. Out: `Facts`, a fingerprint, container edits. This module ties the parts together: it opens the library when
there is hardware to ask about, opens it again when the bus changed, and releases it on request. It never raises for one
bad GPU. It raises `hardware.driver-changed` when this process's library no longer fits the kernel's driver, which only
a new process (re-exec) can solve. A closed vendor opens nothing until the next discovery.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from dra_driver.hardware.evidence import BusState, HealthReport
from dra_driver.hardware.facts import Facts, GpuFacts, MigProfile, PartitionFacts, Problem
from dra_driver.hardware.metered import MeterPlan, MeterReport
from dra_driver.hardware.mixing import mixing_problems
from dra_driver.hardware.nvidia import library, names, sysfs
from dra_driver.hardware.nvidia.assembly import join_gpus, name_silent, shared_identities, unreported
from dra_driver.hardware.nvidia.edits.nodes import is_missing
from dra_driver.hardware.nvidia.instances import Removal
from dra_driver.hardware.nvidia.links import Edge
from dra_driver.hardware.nvidia.nvml_mig import NvmlFault
from dra_driver.hardware.nvidia.opening import LATE, NotOpen, Opened, open_library
from dra_driver.hardware.nvidia.partitioning import Partitioning
from dra_driver.hardware.nvidia.reading import GpuReading
from dra_driver.hardware.nvidia.session import WATCH_ENDS_S, DriverState, GpuWorker, NvmlSession
from dra_driver.hardware.nvidia.worker import LibraryCall, Worker
from dra_driver.hardware.port import Fingerprint, Roots
from dra_driver.model.edits import Edits
from dra_driver.model.errors import HardwareError, Retry
from dra_driver.model.sharing import ComputeMode, Interval, SharedDevice
from dra_driver.telemetry.logs import fields

if TYPE_CHECKING:
    from dra_driver.hardware.compute.program import ComputeProgram
    from dra_driver.hardware.nvidia.health.reporter import NvidiaHealth
    from dra_driver.hardware.nvidia.metering.meter import NvidiaMeter
    from dra_driver.hardware.nvidia.modes import Modes

log = logging.getLogger(__name__)

PROBE_S = 0.5  # the longest that a fingerprint takes, whatever hangs
RETRY_S = 3.0  # the interval at which opening a library that could not be opened is tried again


class NvidiaHardware:
    """NVIDIA's GPUs on this node.

    Args:
        roots: where the node's trees are.
        call_timeout_s: a library call in flight for longer makes its GPU "not answering" until it returns.
        patience_s: how long a discovery waits for slow GPUs once another has answered. A slow GPU keeps its last
            facts until its call is overdue.
    """

    vendor = "nvidia"
    needs_privilege = True  # to reset a GPU

    def __init__(self, roots: Roots, *, call_timeout_s: float = 10.0, patience_s: float = 1.0) -> None:
        self._roots = roots
        self._overdue_s = call_timeout_s
        self._patience_s = min(patience_s, call_timeout_s)
        self._discovering = threading.Lock()
        self._driver = Worker("nvml")
        self._opening: LibraryCall[Opened] | None = None
        self._opened: Opened | None = None
        self._session: NvmlSession | None = None
        self._leaving: list[NvmlSession] = []
        self._is_waiting = False
        self._edges: set[Edge] = set()
        self._lost: frozenset[str] = frozenset()
        self._not_on_bus: frozenset[str] = frozenset()  # GPUs that the library knew when sysfs did not show them
        self._driver_version: str | None = None
        self._left_out: tuple[str, ...] = ()
        self._health: NvidiaHealth | None = None
        self._meter: NvidiaMeter | None = None
        self._returned = threading.Event()  # unset from `await_return` until the library was opened again
        self._returned.set()
        self._partitioning = Partitioning(lambda: self._session, self._is_gone, call_timeout_s, self._returned)

    # -- what is here

    def is_present(self) -> bool:
        """Return whether there is a GPU on the PCI bus or, where no bus is visible, traces of a driver."""
        return (
            bool(sysfs.read_pci_functions(self._roots))
            or sysfs.has_driver_traces(self._roots)
            or any(library.in_library_path())
            or (library.has_own_mount(self._roots) and any(library.below_mount(self._roots)))
        )

    def discover(self) -> Facts:
        """Read everything and return it.

        Raises: HardwareError("hardware.driver-changed", retry LATER): a new process must replace this one.
        """
        with self._discovering:
            try:
                return self._look()
            finally:
                self._returned.set()

    def driver_changed(self) -> bool:
        """Return whether the driver was replaced since this process first used its library (reads files only)."""
        return self._opened is not None and self._opened.is_outdated(self._roots)

    def fingerprint(self) -> Fingerprint:
        """Return a value that changes when `discover` would return something else. Never opens the library."""
        nodes = sysfs.read_nodes(self._roots)
        caps = tuple(node for node in nodes if node[0].startswith("nvidia-caps/"))
        files = (
            self._bus(nodes),
            tuple(node for node in nodes if node not in caps),
            sysfs.read_majors(self._roots),
            sysfs.read_driver_version(self._roots),
            self.driver_changed(),
        )
        session = self._session
        probed, mig = session.probe(PROBE_S, self._overdue_s) if session is not None else (None, ())
        if not self._is_waiting:
            return Fingerprint((files, probed), mig, caps)
        found = tuple(library.look_at(path) for path in library.candidates(self._roots))
        return Fingerprint((files, probed, found, int(time.monotonic() / RETRY_S)), mig, caps)

    def close(self) -> None:
        """Release the library and every device node, so that the driver can be unloaded."""
        if not self._discovering.acquire(timeout=self._overdue_s):
            log.warning("library not released because discovery hangs", extra=fields(vendor=self.vendor))
            return
        try:
            self._is_waiting = False
            self._let_go()
        finally:
            self._discovering.release()

    # -- what a container needs

    def common_edits(self) -> Edits:
        """Return what every container with one of these devices needs."""
        from dra_driver.hardware.nvidia.edits.edits import common_edits  # noqa: PLC0415

        version = sysfs.read_driver_version(self._roots) or self._driver_version
        common, self._left_out = common_edits(self._roots, version)
        return common

    def device_edits(self, gpu: GpuFacts, partition: PartitionFacts | None) -> Edits:
        """Return what one device needs. Raises: HardwareError("hardware.node-missing")."""
        from dra_driver.hardware.nvidia.edits.edits import device_edits  # noqa: PLC0415

        minor = sysfs.read_minor(self._roots, gpu.pci_address)  # a change of MIG mode may have changed it
        now = gpu if minor in (None, gpu.minor) else replace(gpu, minor=minor)
        return device_edits(self._roots, now, partition)

    def edit_problems(self) -> tuple[str, ...]:
        """Return what the common edits leave out now and why; nothing where there is no GPU."""
        if self.is_present():
            self.common_edits()
        return self._left_out

    # -- which processes use it

    def processes(self, gpu: GpuFacts, partition: PartitionFacts | None) -> tuple[int, ...]:
        """Return the process ids on a device. Raises: HardwareError when the hardware can't report them."""
        worker = self._worker_of(gpu)
        if worker is None:
            raise HardwareError("gpu-unknown", f"GPU {gpu.pci_address} is not known to the driver", retry=Retry.LATER)
        uuid, nvml = (partition or gpu).uuid, worker.nvml
        job = worker.worker.submit(lambda: nvml.processes(nvml.by_uuid(uuid)))
        if worker.is_overdue(self._overdue_s) or not job.wait(self._overdue_s):
            job.drop()
            raise HardwareError("gpu-not-answering", f"GPU {gpu.pci_address} does not answer", retry=Retry.LATER)
        try:
            return tuple(sorted(job.take()))
        except NvmlFault as fault:
            raise HardwareError(
                "processes-unreadable", f"the processes on GPU {gpu.pci_address} can't be listed: {fault}"
            ) from fault

    def _worker_of(self, gpu: GpuFacts) -> GpuWorker | None:
        session = self._session
        gpus = session.gpus if session is not None else []
        return next((w for w in gpus if w.last is not None and w.last.address == gpu.pci_address), None)

    def _is_gone(self, gpu: GpuFacts) -> bool:
        """Return whether a GPU has left the bus, or there is no GPU here at all."""
        addresses = {function.address for function in sysfs.read_pci_functions(self._roots)}
        if gpu.pci_address in self._not_on_bus:  # sysfs can't show whether it is still here
            return False
        return gpu.pci_address not in addresses if addresses else not self.is_present()

    # -- MIG on demand (port.Partitionable)

    def create_partition(self, gpu: GpuFacts, profile: MigProfile, start: int, deadline_s: float) -> PartitionFacts:
        """Return the partition of `profile` at `start`, created now unless it exists already."""
        return self._partitioning.create(gpu, profile, start, deadline_s)

    def destroy_partition(
        self, gpu: GpuFacts, uuid: str, deadline_s: float, *, placement: tuple[int, int] | None = None
    ) -> None:
        """Destroy the partition with a UUID, and an unfinished one at `placement`."""
        self._partitioning.destroy(gpu, Removal(uuid, placement), deadline_s)

    def set_mig_mode(self, gpu: GpuFacts, enabled: bool, deadline_s: float) -> None:
        """Switch MIG mode."""
        self._partitioning.set_mode(gpu, deadline_s, enabled=enabled)

    def mig_mode(self, gpu: GpuFacts, deadline_s: float) -> bool:
        """Return whether MIG mode is on, read from the hardware now."""
        return self._partitioning.mode(gpu, deadline_s)

    def partitions_now(self, gpu: GpuFacts) -> tuple[PartitionFacts, ...]:
        """Return the GPU's partitions, read from the hardware now."""
        return self._partitioning.read(gpu, self._overdue_s).partitions

    def unusable_now(self, gpu: GpuFacts) -> tuple[tuple[int, int], ...]:
        """Return the GPU's other instances, read from the hardware now."""
        return self._partitioning.read(gpu, self._overdue_s).unusable

    # -- sharing (port.Shareable)

    def _modes(self) -> Modes:
        from dra_driver.hardware.nvidia.modes import Modes  # noqa: PLC0415 - only where devices are shared

        return Modes(self._roots, self._partitioning)

    def compute_mode(self, device: SharedDevice, deadline_s: float) -> ComputeMode:
        """Return the compute mode of a GPU or a MIG device."""
        return self._modes().compute_mode(device, deadline_s)

    def set_compute_mode(self, device: SharedDevice, mode: ComputeMode, deadline_s: float) -> None:
        """Set the compute mode of a GPU or a MIG device."""
        self._modes().set_compute_mode(device, mode, deadline_s)

    def time_slice(self, device: SharedDevice, deadline_s: float) -> Interval | None:
        """Return how long a GPU's time slices are."""
        return self._modes().time_slice(device, deadline_s)

    def set_time_slice(self, device: SharedDevice, interval: Interval, deadline_s: float) -> None:
        """Set how long a GPU's time slices are."""
        self._modes().set_time_slice(device, interval, deadline_s)

    def limit_memory(self, device: SharedDevice, cgroup: str, limit: int | None, deadline_s: float) -> None:
        """Limit how much of a GPU's memory a cgroup gets (port.MemoryLimiting)."""
        self._modes().limit_memory(device, cgroup, limit, deadline_s)

    # -- resets (port.Resettable)

    def await_return(self) -> None:
        """Let calls about GPUs wait until the library, which is about to be closed, is open again."""
        self._returned.clear()

    def is_closed(self) -> bool:
        """Return whether this process has no GPU open."""
        return self._session is None and not self._leaving and self._opening is None

    def open_by(self, gpu: GpuFacts) -> tuple[int, ...]:
        """Return the ids of the processes that have a GPU open."""
        from dra_driver.hardware.nvidia.resetting import processes_with  # noqa: PLC0415 - only where GPUs are reset

        return processes_with(self._roots, gpu)

    def persistence(self, gpu: GpuFacts, deadline_s: float) -> bool | None:
        """Return whether a GPU is in persistence mode; None where it reports none."""
        from dra_driver.hardware.nvidia.resetting import persistence  # noqa: PLC0415 - only where GPUs are reset

        return persistence(self._partitioning, gpu, deadline_s)

    def set_persistence(self, gpu: GpuFacts, enabled: bool, deadline_s: float) -> None:
        """Switch persistence mode."""
        from dra_driver.hardware.nvidia.resetting import set_persistence  # noqa: PLC0415 - only where GPUs are reset

        set_persistence(self._partitioning, gpu, deadline_s, enabled=enabled)

    def reset(self, gpus: Sequence[GpuFacts], deadline_s: float) -> None:
        """Reset GPUs together, by nvidia-smi below the driver root."""
        from dra_driver.hardware.nvidia.resetting import reset_gpus  # noqa: PLC0415 - only where GPUs are reset

        reset_gpus(self._roots, gpus, deadline_s)

    # -- health (port.HealthReporter)

    def watch_health(self, notify: Callable[[], None], *, log_position: int) -> None:
        """Begin to observe the health of the GPUs, from the next discovery on if the library is not open yet."""
        from dra_driver.hardware.nvidia.health.reporter import NvidiaHealth  # noqa: PLC0415 - only where it is on

        with self._discovering:
            self._health = NvidiaHealth(self._roots, notify, log_position=log_position)
            self._begin_watch()

    def health(self, *, is_urgent: bool, patience_s: float) -> HealthReport:
        """Return what was observed since the last call."""
        health = self._health
        return health.report(is_urgent=is_urgent, patience_s=patience_s) if health is not None else HealthReport()

    def bus_states(self, gpus: tuple[str, ...]) -> Mapping[str, BusState]:
        """Return what the PCI bus shows of GPUs."""
        health = self._health
        return health.bus_states(gpus) if health is not None else {}

    def end_health(self) -> None:
        """Stop observing."""
        with self._discovering:
            health, self._health = self._health, None
            if health is not None:
                health.close()
                self._begin_watch()

    # -- tests of devices (port.ComputeTested)

    def compute_program(self, gpu: GpuFacts, partition: PartitionFacts | None, *, is_thorough: bool) -> ComputeProgram:
        """Return the program that tests a device."""
        from dra_driver.hardware.nvidia.compute import cuda_program  # noqa: PLC0415 - only where devices are tested

        return cuda_program(self._roots, gpu, partition, is_thorough=is_thorough)

    # -- metering (port.Metered)

    def begin_metering(self, plan: MeterPlan) -> None:
        """Begin to measure, from the next discovery on if the library is not open yet."""
        from dra_driver.hardware.nvidia.metering.meter import NvidiaMeter  # noqa: PLC0415 - only where it is on

        with self._discovering:
            self._meter = NvidiaMeter(plan)
            if self._health is None:
                self._begin_watch()

    def meter_report(self) -> MeterReport:
        """Return what was measured last."""
        meter = self._meter
        return meter.report() if meter is not None else MeterReport()

    def end_metering(self) -> None:
        """Stop measuring."""
        with self._discovering:
            self._meter = None
            if self._health is None:
                self._begin_watch()

    def _begin_watch(self) -> None:
        """Start the watch that health and metering need now, in place of the one that the session has."""
        session = self._session
        if session is None:
            return
        if session.watch is not None:
            is_replaced = self._health is not None or self._meter is not None
            session.watch.end(WATCH_ENDS_S if is_replaced else 0)
        if self._health is not None:
            session.watch = self._health.begin_session(lambda: self._meter)
        elif self._meter is not None:
            from dra_driver.hardware.nvidia.health.watch import HealthWatch, Watched  # noqa: PLC0415

            session.watch = HealthWatch(Watched(), lambda: None, meter=lambda: self._meter, polls=False)

    # -- discovery

    def _look(self) -> Facts:
        if not self.is_present():
            self._let_go()
            return Facts(self.vendor)
        if self.driver_changed():
            self._let_go()
            raise HardwareError(
                "driver-changed",
                "the NVIDIA driver was replaced after this process had loaded its library",
                hint="the process has to be restarted to load the new library",
                retry=Retry.LATER,
            )
        try:
            facts = self._discover()
        except NotOpen as reason:
            if not reason.is_late:
                self._let_go()
            self._is_waiting = True
            return self._waiting_facts(reason)
        self._is_waiting = False
        return facts

    def _discover(self) -> Facts:
        """Open what has to be opened and read all GPUs. Raises: NotOpen."""
        session = self._current_session()
        try:
            state = session.read_state(self._overdue_s)
        except NvmlFault as fault:
            raise NotOpen("library-failed", f"NVML to answer; it reports {fault}") from fault
        if state is None:
            raise NotOpen(LATE, f"NVML, which does not answer {self._driver.waits_for()[0]}")
        session.read_gpus(self._patience_s, self._overdue_s)
        return self._facts(session, state)

    def _current_session(self) -> NvmlSession:
        """Return the open session, opened again when the bus changed or a lost GPU may be back. Raises: NotOpen."""
        bus = self._bus(sysfs.read_nodes(self._roots))
        session = self._session
        if session is not None and (session.bus != bus or self._lost) and not session.has_calls_in_flight():
            self._let_go()
        if self._session is None:
            self._open()
            self._session = NvmlSession(self._roots, self._driver, bus)
            self._begin_watch()
        return self._session

    def _open(self) -> None:
        if self._opening is None:
            self._opening = self._driver.submit(partial(open_library, self._roots, self._driver))
        if not self._opening.wait(self._overdue_s):
            raise NotOpen(LATE, f"NVML, which has not returned from {self._driver.waits_for()[0]}")
        opening, self._opening = self._opening, None
        try:
            self._opened = opening.take()
        except NotOpen as reason:
            self._opened = reason.loaded
            raise

    def _bus(self, nodes: tuple[tuple[str, int], ...]) -> Hashable:
        """Return what the library looks at only during initialisation.

        That is the GPUs on the bus, those that the driver drives, and the GPUs' nodes.
        """
        names_of_gpus = tuple(name for name, _ in nodes if name.removeprefix("nvidia").isdecimal())
        return sysfs.read_pci_functions(self._roots), sysfs.read_driven_gpus(self._roots), names_of_gpus

    def _facts(self, session: NvmlSession, state: DriverState) -> Facts:
        readings, problems = self._readings(session)
        answered = [*(r.address for r in readings if r.address), *(p.subject for p in problems)]
        functions = sysfs.read_pci_functions(self._roots)
        silent = sum(problem.subject == "node" for problem in problems)
        problems = [*name_silent(problems, functions, answered), *unreported(functions, answered, silent=silent)]
        problems += shared_identities(readings)
        problems += self._without_nodes(readings)
        self._lost = frozenset(r.address or str(r.index) for r in readings if r.is_lost)
        self._not_on_bus = frozenset(filter(None, (r.address for r in readings))) - {f.address for f in functions}
        self._edges.update(edge for reading in readings for edge in reading.links.edges)
        self._driver_version = state.driver_version
        gpus = join_gpus(readings, self._edges)
        version = names.strict_version(state.driver_version) if state.driver_version else None
        problems += mixing_problems(gpus, version)
        return Facts(
            vendor=self.vendor,
            gpus=gpus,
            driver_version=version,
            runtime_version=names.cuda_version(state.cuda_version) if state.cuda_version else None,
            problems=(*state.problems, *sorted(problems, key=lambda p: (p.subject, p.code, p.message))),
        )

    def _readings(self, session: NvmlSession) -> tuple[list[GpuReading], list[Problem]]:
        """Return the reading of each GPU that has one, and a problem for each that does not answer."""
        readings: list[GpuReading] = []
        problems: list[Problem] = []
        for index, gpu in enumerate(session.gpus):
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

    def _without_nodes(self, readings: list[GpuReading]) -> list[Problem]:
        """Return a problem for each GPU whose device node does not exist yet, since no container can open it."""
        found = (reading.facts for reading in readings if reading.facts is not None)
        lost = [gpu for gpu in found if is_missing(self._roots, f"nvidia{gpu.minor}")]
        text = "the device node /dev/nvidia{} does not exist: claims of this GPU wait for it"
        return [Problem("hardware.node-missing", gpu.pci_address, text.format(gpu.minor)) for gpu in lost]

    def _waiting_facts(self, reason: NotOpen) -> Facts:
        problems = unreported(sysfs.read_pci_functions(self._roots), (), silent=10**6)
        return Facts(
            self.vendor,
            problems=(Problem(reason.code, "node", f"waiting for {reason.text}"), *problems),
            waiting_for=reason.text,
        )

    def _let_go(self) -> None:
        """Shut the library down as often as it was initialised; what a call in flight prevents is retried next time."""
        if self._session is not None:
            self._leaving.append(self._session)
            if self._health is not None and self._session.watch is not None:
                self._health.end_session(self._session.watch)
        self._session = None
        self._lost = frozenset()
        self._leaving = [session for session in self._leaving if not session.close(self._overdue_s)]
        if self._leaving:
            log.warning("library not released because a call is in flight", extra=fields(vendor=self.vendor))
