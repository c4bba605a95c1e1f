"""Own changes: the GPUs that this driver itself changed, and their facts after the change, without a discovery.

In: the facts as last discovered, and the GPUs that were changed. Out: the facts as a discovery would find them now, or
None if a discovery is needed. Only the facts that a change of MIG mode or partitions affects are read.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace

from dra_driver.hardware.facts import MIXED, Facts, GpuFacts, mixed_mig_problems
from dra_driver.hardware.port import Partitionable

READ_SECONDS = 5.0


class OwnChanges:
    """The GPUs whose MIG mode or partitions this agent is changing, or has changed since the last look.

    Any thread may change a GPU, and any thread may look at the hardware. A change may last longer than the time between
    two looks, so each look during a change has to know of it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way: Counter[str] = Counter()  # the number of changes, by PCI address
        self._ended: set[str] = set()

    def change(self, gpu: GpuFacts) -> AbstractContextManager[None]:
        """Return a context in which the GPU counts as changed by this agent; so it does in the first look after it."""
        return _Change(self, gpu.pci_address)

    def begin(self, address: str) -> None:
        """Begin a change of the GPU at a PCI address."""
        with self._lock:
            self._under_way[address] += 1

    def end(self, address: str) -> None:
        """End a change of the GPU at a PCI address."""
        with self._lock:
            self._under_way[address] -= 1
            self._ended.add(address)

    def take(self) -> frozenset[str]:
        """Return the PCI addresses of the changed GPUs, and forget those whose changes have ended."""
        with self._lock:
            taken = frozenset(self._ended) | frozenset(+self._under_way)
            self._ended.clear()
        return taken


class _Change:
    """The context of `OwnChanges.change`. A generator would cost more time."""

    __slots__ = ("_address", "_changes")

    def __init__(self, changes: OwnChanges, address: str) -> None:
        self._changes, self._address = changes, address

    def __enter__(self) -> None:
        self._changes.begin(self._address)

    def __exit__(self, *_: object) -> None:
        self._changes.end(self._address)


def facts_after(
    facts: Facts, addresses: Collection[str], hardware: Partitionable, limits_memory: Mapping[str, bool]
) -> Facts | None:
    """Return the facts with those about MIG read again for the GPUs at these PCI addresses.

    `limits_memory` holds, by PCI address, whether a GPU's memory can be limited while MIG mode is off; with MIG mode
    on it can't. Raises: HardwareError.
    """
    if any(problem.subject in addresses and problem.code != MIXED for problem in facts.problems):
        return None  # only a discovery finds out which of a GPU's problems have ended
    gpus = []
    for gpu in facts.gpus:
        now = _read(gpu, hardware, limits_memory) if gpu.pci_address in addresses else gpu
        if now is None:
            return None
        gpus.append(now)
    kept = (problem for problem in facts.problems if problem.code != MIXED)
    return replace(facts, gpus=tuple(gpus), problems=(*kept, *mixed_mig_problems(tuple(gpus), facts.driver_version)))


def _read(gpu: GpuFacts, hardware: Partitionable, limits_memory: Mapping[str, bool]) -> GpuFacts | None:
    is_enabled = hardware.mig_mode(gpu, READ_SECONDS)
    if not is_enabled and gpu.pci_address not in limits_memory:
        return None
    return replace(
        gpu,
        mig_enabled=is_enabled,
        partitions=hardware.partitions_now(gpu),
        unusable=hardware.unusable_now(gpu),
        limits_memory=not is_enabled and limits_memory[gpu.pci_address],
    )
