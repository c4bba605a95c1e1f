"""Known GPUs: the GPUs that were seen in this boot, so that a lost one is noticed and stays published.

A GPU that is no longer found is missing, unless it is absent on purpose: bound to another kernel driver (for a VM, or
by a driver manager), or declared gone with `dra-driver health forget`. While the hardware does not answer at all,
because the driver was unloaded, no GPU counts as missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, fields, replace
from typing import Any

from dra_driver.hardware.evidence import BusState
from dra_driver.hardware.facts import Facts, GpuFacts, MigProfile, PartitionFacts
from dra_driver.hardware.vendors import load_vendor
from dra_driver.model.vendors import registered_or_default

BusStates = Callable[[tuple[str, ...]], Mapping[str, BusState]]
NOT_ANSWERING = "hardware.gpu-not-answering"


class KnownGpus:
    """The GPUs of one boot, by PCI address. `bus` returns the present state of some of them on the PCI bus."""

    def __init__(self, bus: BusStates) -> None:
        self._bus = bus
        self._gpus: dict[str, tuple[GpuFacts, ...]] = {}  # several facts if the hardware itself divides a GPU
        self._missing: Mapping[str, bool] = {}
        # Increases with every change of the facts, except of partitions: claims change these all the time, and a lost
        # GPU has none.
        self.revision = 0

    @property
    def by_address(self) -> Mapping[str, GpuFacts]:
        """The newest facts of each GPU; for a divided GPU, those of the whole."""
        return {address: max(parts, key=lambda gpu: gpu.parts) for address, parts in self._gpus.items()}

    @property
    def missing(self) -> Mapping[str, bool]:
        """The missing GPUs, each with whether the reason is a call of the library that does not return."""
        return self._missing

    def restore(self, gpus: Iterable[GpuFacts]) -> None:
        """Add GPUs that were known before a restart. The facts of GPUs that were found since then are kept."""
        self._gpus = {**_by_address(gpus), **self._gpus}

    def completed(self, facts: Facts) -> Facts:
        """Return the facts with the missing GPUs added as they were last seen, and marked as lost."""
        if facts.waiting_for:
            return facts
        found = _by_address(gpu for gpu in facts.gpus if not gpu.is_lost)  # the facts may have been completed before
        for address, parts in found.items():
            before, self._gpus[address] = self._gpus.get(address, ()), parts
            self.revision += before != parts and _without_partitions(before) != _without_partitions(parts)
        absent = tuple(sorted(set(self._gpus) - set(found)))
        states = self._bus(absent) if absent else {}
        self.forget(gpu for gpu in absent if states.get(gpu) is BusState.ELSEWHERE)
        hanging = {problem.subject for problem in facts.problems if problem.code == NOT_ANSWERING}
        self._missing = {gpu: gpu in hanging for gpu in absent if gpu in self._gpus}
        lost = (replace(part, is_lost=True) for gpu in self._missing for part in self._gpus[gpu])
        present = (part for parts in found.values() for part in parts)
        return replace(facts, gpus=tuple(sorted((*present, *lost), key=lambda gpu: (gpu.pci_address, gpu.part))))

    def forget(self, gpus: Iterable[str]) -> None:
        """Forget GPUs that are gone for good."""
        for gpu in gpus:
            if self._gpus.pop(gpu, None) is not None:
                self.revision += 1
        self._missing = {gpu: is_hanging for gpu, is_hanging in self._missing.items() if gpu in self._gpus}

    def to_wire(self) -> list[dict[str, Any]]:
        """Return the known GPUs as JSON values."""
        return [{"vendor": gpu.vendor, **asdict(gpu)} for parts in self._gpus.values() for gpu in parts]


def _without_partitions(parts: Iterable[GpuFacts]) -> list[GpuFacts]:
    return [replace(gpu, mig_enabled=False, partitions=(), unusable=(), limits_memory=False) for gpu in parts]


def _by_address(gpus: Iterable[GpuFacts]) -> dict[str, tuple[GpuFacts, ...]]:
    found: dict[str, tuple[GpuFacts, ...]] = {}
    for gpu in gpus:
        found[gpu.pci_address] = (*found.get(gpu.pci_address, ()), gpu)
    return found


def read_gpus(wire: Any) -> tuple[GpuFacts, ...]:
    """Return the GPUs that `to_wire` described; those that an older version described differently are left out."""
    found = []
    for one in wire if isinstance(wire, list) else ():
        try:
            found.append(_gpu(one))
        except (KeyError, TypeError, ValueError):
            continue
    return tuple(found)


def _gpu(wire: Mapping[str, Any]) -> GpuFacts:
    kind = load_vendor(registered_or_default(wire.get("vendor", "")).name).gpu
    names = {field.name for field in fields(kind)}
    values = {name: _frozen(value) for name, value in wire.items() if name in names}
    values.setdefault("link_domain", wire.get("nvlink_domain"))  # as 0.2 development versions spelt it
    values["partitions"] = tuple(PartitionFacts(**one) for one in wire["partitions"])
    values["mig_profiles"] = tuple(
        MigProfile(**{**one, "starts": tuple(one["starts"])}) for one in wire["mig_profiles"]
    )
    return kind(**values)


def _frozen(value: Any) -> Any:
    return tuple(_frozen(one) for one in value) if isinstance(value, list) else value
