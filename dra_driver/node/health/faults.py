"""Fault: one thing that is wrong with a GPU or one of its partitions, and since when.

Keys are names without the driver's domain; as a taint, `xid` becomes `gpu.nvidia.com/xid`. `xid`, `gpu-lost` and
`unmonitored` are the keys of NVIDIA's own DRA driver, with its values, so that tolerations written for it work.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from dra_driver.base.flags import registered_or_default
from dra_driver.base.wire import TaintEffect
from dra_driver.hardware.evidence import BusState
from dra_driver.hardware.facts import Facts, GpuFacts, MigProfile, PartitionFacts
from dra_driver.hardware.vendors import load_vendor


class FaultKey(enum.StrEnum):
    """The dimensions of a GPU's health, in order of importance. A device has at most one fault of each."""

    GPU_LOST = "gpu-lost"
    NEEDS_REBOOT = "needs-reboot"
    NEEDS_RESET = "needs-reset"
    NEEDS_ATTENTION = "needs-attention"
    CORDONED = "cordoned"
    REMEDIATION = "remediation"
    NOT_ANSWERING = "not-answering"
    XID = "xid"
    ECC_UNCORRECTABLE = "ecc-uncorrectable"
    ECC_THRESHOLD = "ecc-threshold"
    ROW_REMAP_FAILED = "row-remap-failed"
    NVLINK = "nvlink"
    FABRIC = "fabric"
    UNVALIDATED = "unvalidated"
    ROW_REMAP_PENDING = "row-remap-pending"
    THERMAL = "thermal"
    THROTTLED = "throttled"
    PCIE = "pcie"
    UNMONITORED = "unmonitored"

    @property
    def rank(self) -> int:
        """Return the position in the order of importance; 0 is the most important."""
        return list(FaultKey).index(self)


STICKY = frozenset([FaultKey.ECC_THRESHOLD, FaultKey.ROW_REMAP_FAILED])
"""Faults of the hardware itself, which neither a reset nor a reboot ends."""

SENTENCES = {
    FaultKey.GPU_LOST: "the GPU is lost: it does not answer on the bus; reboot the machine",
    FaultKey.NEEDS_REBOOT: "the driver asks for a reboot of the machine",
    FaultKey.NEEDS_RESET: "the driver asks for a reset of the GPU once no pod uses it",
    FaultKey.NEEDS_ATTENTION: "the driver reports an error that a person has to look at",
    FaultKey.CORDONED: "an administrator took the device out of use",
    FaultKey.REMEDIATION: "the GPU is being repaired, or waits for a person; no new claim gets it",
    FaultKey.NOT_ANSWERING: "a call of the driver's library about this GPU does not return",
    FaultKey.XID: "the driver reported an Xid error that a new process does not cure",
    FaultKey.ECC_UNCORRECTABLE: "the GPU's memory had uncorrectable errors",
    FaultKey.ECC_THRESHOLD: "the GPU's SRAM had more errors than NVIDIA allows: have the card replaced",
    FaultKey.ROW_REMAP_FAILED: "a row of the GPU's memory could not be remapped: have the card replaced",
    FaultKey.NVLINK: "an NVLink that was up is down",
    FaultKey.FABRIC: "the NVLink fabric reports that the GPU is unhealthy",
    FaultKey.UNVALIDATED: "a test of the device failed; dra-driver validate tests it again",
    FaultKey.ROW_REMAP_PENDING: "a row of the GPU's memory will be remapped at the next reset",
    FaultKey.THERMAL: "the GPU is so hot that it slows down",
    FaultKey.THROTTLED: "the hardware slows the GPU down",
    FaultKey.PCIE: "the GPU's PCIe link repeats more packets than is usual",
    FaultKey.UNMONITORED: "the GPU's health is not known, because the driver's library does not answer",
}
"""What each key means, in one sentence that stays the same while the fault lasts."""

DRIVER_RESET, RESET_FAILED, UNKNOWN = "driver-reset", "reset-failed", "unknown"
_SENTENCES_OF_VALUES = {
    DRIVER_RESET: "the kernel driver reset the GPU: programs have lost their data on it, and have to start again",
    UNKNOWN: "what the agent knew of the GPU before its restart can't be read; until it can, no new claim gets the GPU",
    RESET_FAILED: "the kernel driver could not reset the GPU: reboot the machine",
}


@dataclass(frozen=True, slots=True, order=True)
class Subject:
    """The subject of a fault: a GPU by PCI address, or one of its partitions by profile and first memory slice."""

    gpu: str
    partition: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. Times are seconds since 1970; `boot` is the id of the boot in which it was last seen.

    `since` never changes while the fault lasts. `is_mild` is true if the driver reports that no action is needed.
    """

    key: FaultKey
    subject: Subject
    value: str
    since: float
    last_seen: float
    count: int = 1
    boot: str = ""
    is_flapping: bool = False
    is_mild: bool = False

    @property
    def sentence(self) -> str:
        """A sentence about what is wrong, which stays the same for as long as the fault lasts."""
        value = f" ({self.value})" if self.value else ""
        sentence = _SENTENCES_OF_VALUES.get(self.value) or SENTENCES[self.key]
        flapping = "; it comes and goes" if self.is_flapping else ""
        return f"{self.key}{value}: {sentence}{flapping}"


# Known GPUs: the GPUs that were seen in this boot, so that a lost one is noticed and stays published.

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


# Health policy: what each fault means for the scheduler.

NONE, NO_SCHEDULE, NO_EXECUTE = TaintEffect.NONE, TaintEffect.NO_SCHEDULE, TaintEffect.NO_EXECUTE
EVICTED_LEAST = 2


@dataclass(frozen=True, slots=True)
class HealthRule:
    """What a fault of one key means. Times are in seconds.

    After `escalates_after`, the effect NONE becomes NO_SCHEDULE. A fault that was not seen for `time_to_live` no
    longer counts. An ignored fault is still recorded, and counted in metrics.
    """

    effect: TaintEffect
    escalates_after: float | None = None
    time_to_live: float | None = None
    is_ignored: bool = False


_INFORMING = (FaultKey.ROW_REMAP_PENDING, FaultKey.THROTTLED, FaultKey.PCIE, FaultKey.UNMONITORED)
DEFAULT_RULES: Mapping[FaultKey, HealthRule] = {
    **{key: HealthRule(NO_SCHEDULE) for key in FaultKey},
    **{key: HealthRule(NONE) for key in _INFORMING},
    FaultKey.THERMAL: HealthRule(NONE, escalates_after=300.0),
}


class HeldBackReason(enum.StrEnum):
    """Why NO_EXECUTE became NO_SCHEDULE."""

    NODE = "node"  # too many GPUs of the node would lose their pods
    BUDGET = "budget"  # too many GPUs of the cluster have lost their pods lately


@dataclass(frozen=True, slots=True)
class FaultVerdict:
    """A fault that counts, with its effect.

    `since` (seconds since 1970) stays the same as long as the fault lasts.
    """

    fault: Fault
    effect: TaintEffect
    since: float
    held_back: HeldBackReason | None = None


@dataclass(frozen=True, slots=True)
class EvictionLimit:
    """The limit on GPUs and partitions of the cluster that may get NO_EXECUTE within `period_s` seconds."""

    devices: int = 5
    period_s: int = 600


@dataclass(frozen=True, slots=True)
class HealthPolicy:
    """The rules of a node. `ignored_xids` are codes that raise no fault, whatever the table of Xids says."""

    rules: Mapping[FaultKey, HealthRule] = field(default_factory=lambda: DEFAULT_RULES)
    ignored_xids: frozenset[int] = frozenset()
    evictions: EvictionLimit = EvictionLimit()

    def verdicts(self, faults: Iterable[Fault], gpus: int, now: float) -> tuple[FaultVerdict, ...]:
        """Return a verdict for each fault that counts, on a node that has this number of GPUs."""
        verdicts = tuple(verdict for fault in faults if (verdict := self._verdict(fault, now)) is not None)
        evicted = {verdict.fault.subject.gpu for verdict in verdicts if verdict.effect is NO_EXECUTE}
        if len(evicted) < EVICTED_LEAST or 2 * len(evicted) <= gpus:
            return verdicts
        return tuple(
            replace(one, effect=NO_SCHEDULE, held_back=HeldBackReason.NODE) if one.effect is NO_EXECUTE else one
            for one in verdicts
        )

    @property
    def evicts(self) -> bool:
        """Return whether any fault may delete pods."""
        return any(rule.effect is NO_EXECUTE and not rule.is_ignored for rule in self.rules.values())

    def _verdict(self, fault: Fault, now: float) -> FaultVerdict | None:
        rule = self.rules[fault.key]
        if rule.is_ignored or (rule.time_to_live is not None and now - fault.last_seen > rule.time_to_live):
            return None
        effect = NONE if fault.is_mild else rule.effect
        if effect is NONE and rule.escalates_after is not None and now - fault.since >= rule.escalates_after:
            effect = NO_SCHEDULE
        return FaultVerdict(fault, effect, fault.since)
