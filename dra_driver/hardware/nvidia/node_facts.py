"""The facts of the node, from the readings of its GPUs and from what earlier readings showed.

In: a session whose GPUs were read. Out: `Facts`, in which every GPU on the bus is a GPU or a problem. What a later
reading can't show is remembered: the links of a GPU whose MIG mode hides them, the version of an unloaded driver.
"""

from __future__ import annotations

from dra_driver.hardware.facts import Facts, GpuFacts, Problem
from dra_driver.hardware.mixed_mig import mixed_mig_problems
from dra_driver.hardware.nvidia import sysfs
from dra_driver.hardware.nvidia.edits.nodes import is_missing
from dra_driver.hardware.nvidia.gpu_worker import GpuWorker
from dra_driver.hardware.nvidia.opening import NotOpen
from dra_driver.hardware.nvidia.reading import names
from dra_driver.hardware.nvidia.reading.assembly import join_gpus, name_silent, shared_identities, unreported
from dra_driver.hardware.nvidia.reading.gpu import GpuReading
from dra_driver.hardware.nvidia.reading.links import Edge
from dra_driver.hardware.nvidia.session import NvmlSession
from dra_driver.hardware.port import Roots

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
        version = names.strict_version(state.driver_version) if state.driver_version else None
        problems += mixed_mig_problems(gpus, version)
        return Facts(
            vendor=VENDOR,
            gpus=gpus,
            driver_version=version,
            runtime_version=names.cuda_version(state.cuda_version) if state.cuda_version else None,
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
