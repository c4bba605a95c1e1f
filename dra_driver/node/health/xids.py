"""The Xid table: what each of the driver's error codes means, for GPUs on which the driver itself does not report it.

In: a code. Out: its row, with the action that NVIDIA's catalogue gives, the class that this driver derives from it, and
the source. A code that is not in the table gets the row of an unknown code, which a person has to look at.

Sources: NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors, sheet of 2025-10-29) for the actions; the headers of
NVIDIA's open kernel modules, release 595, for codes that the catalogue lacks. Where the catalogue gives no action, the
class is this driver's own judgement, and the source says so.
"""

from __future__ import annotations

import enum
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Self

from dra_driver.hardware.evidence import DriverReset, Vitals, XidReport
from dra_driver.node.health.faults import DRIVER_RESET, RESET_FAILED, FaultKey

LAST_CODE = 176
FALLEN_OFF_BUS = 79
# The driver ended a process that made an error: no action is needed, but the user of the process should learn of it.
STOPPED_PROCESSING = 43
CATALOGUE = "catalogue"
OWN_JUDGEMENT, MODULES = "own judgement: catalogue without an action", "own judgement: kernel modules 595"


class XidClass(enum.StrEnum):
    """What an Xid requires, from the mildest to the worst."""

    INFORMATION = "information"  # no action
    APPLICATION = "application"  # the process made the error, or has ended; the GPU can serve the next one
    FOLLOW = "follow"  # accompanies another Xid or the recovery action, which decide what to do
    LINK = "link"  # an NVLink is faulty
    RESET = "reset"  # the GPU needs a reset
    REBOOT = "reboot"  # the machine needs a reboot
    SUPPORT = "support"  # a person has to examine it

    @property
    def is_harmless(self) -> bool:
        """Whether the GPU may serve the next claim at once."""
        return self in {XidClass.INFORMATION, XidClass.APPLICATION, XidClass.FOLLOW}

    @property
    def rank(self) -> int:
        """How bad the class is, for choosing the worst of several."""
        return list(XidClass).index(self)


@dataclass(frozen=True, slots=True)
class XidRow:
    """One row. `action` is the catalogue's word for the action, "" if it has none."""

    code: int
    kind: XidClass
    action: str
    source: str


def _codes(text: str) -> list[int]:
    """Return the numbers of a list such as "8, 39-41"."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        found.extend(range(int(first), int(last or first) + 1))
    return found


_SECTIONS = (
    (
        XidClass.APPLICATION,
        "RESTART_APP",
        "8, 11, 13, 25, 31, 32, 39-41, 60, 68-72, 75-77, 80, 82-86, 88, 89, 94, 96-105, 126-135, 139",
        CATALOGUE,
    ),
    (
        XidClass.INFORMATION,
        "IGNORE",
        "14, 37, 38, 43, 44, 63, 66, 67, 92, 93, 106-108, 121, 137, 141, 152, 153, 157, 160, 161",
        CATALOGUE,
    ),
    (XidClass.RESET, "RESET_GPU", "46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158", CATALOGUE),
    (XidClass.RESET, "WORKFLOW_XID_48", "48", CATALOGUE),
    (XidClass.REBOOT, "RESTART_BM", "79", CATALOGUE),
    (XidClass.REBOOT, "RESTART_VM", "151", CATALOGUE),
    (XidClass.FOLLOW, "WORKFLOW_XID_45", "45", CATALOGUE),
    (XidClass.FOLLOW, "XID_154", "154", CATALOGUE),
    (XidClass.LINK, "WORKFLOW_NVLINK_ERR", "74", CATALOGUE),
    (XidClass.LINK, "WORKFLOW_NVLINK5_ERR", "144-150", CATALOGUE),
    (XidClass.SUPPORT, "CHECK_MECHANICALS", "54", CATALOGUE),
    (XidClass.SUPPORT, "UPDATE_SWFW", "78", CATALOGUE),
    (XidClass.SUPPORT, "CHECK_UVM", "159", CATALOGUE),
    (
        XidClass.SUPPORT,
        "CONTACT_SUPPORT",
        "1-7, 9, 10, 12, 15-24, 26-30, 33-36, 42, 47, 49-53, 55-59, 61, 65, 73, 81, 87, 90, 91, 111-118",
        CATALOGUE,
    ),
    (
        XidClass.SUPPORT,
        "CONTACT_SUPPORT",
        "122-125, 138, 142",
        CATALOGUE,
    ),
    (XidClass.INFORMATION, "", "162, 163, 171, 172", OWN_JUDGEMENT),
    (XidClass.SUPPORT, "", "164-166, 168, 170", OWN_JUDGEMENT),
    (XidClass.RESET, "", "167, 169", OWN_JUDGEMENT),
    (XidClass.RESET, "", "173", MODULES),
    (XidClass.SUPPORT, "", "174, 175", MODULES),
    (XidClass.INFORMATION, "", "176", MODULES),
)


def is_application_error(code: int) -> bool:
    """Return whether an Xid reports an error of a process, of which the pods that use the GPU are informed."""
    return code == STOPPED_PROCESSING or row_of(code).kind is XidClass.APPLICATION


@lru_cache(1)
def table() -> dict[int, XidRow]:
    """Return all rows by code, in order."""
    rows = {
        code: XidRow(code, kind, action, source) for kind, action, codes, source in _SECTIONS for code in _codes(codes)
    }
    return dict(sorted(rows.items()))


def row_of(code: int) -> XidRow:
    """Return the row of a code. An unknown code gets a row that asks for a person to examine it.

    >>> row_of(109).kind.value, row_of(13).kind.is_harmless, row_of(9999).source
    ('reset', True, 'unknown code')
    """
    return table().get(code) or XidRow(code, XidClass.SUPPORT, "", "unknown code")


# Indications: what one reading of a GPU shows about each dimension of its health.

ACTIONS = {
    1: (FaultKey.NEEDS_RESET, "gpu-reset"),
    2: (FaultKey.NEEDS_REBOOT, "node-reboot"),
    3: (FaultKey.NEEDS_RESET, "drain-p2p"),
    4: (FaultKey.NEEDS_RESET, "drain-and-reset"),
    5: (FaultKey.NEEDS_ATTENTION, "recover-imex-domain"),
    6: (FaultKey.NEEDS_RESET, "bus-reset"),
    7: (FaultKey.NEEDS_REBOOT, "system-reboot"),
}
"""NVML's recovery actions (nvml.h, NVML_GPU_RECOVERY_ACTION_*); an action that is not listed is left to a person."""
HW_THERMAL, HW_POWER_BRAKE = 0x40, 0x80
FABRIC_UNHEALTHY = 2
THERMAL_BACK = 3  # degrees above the threshold at which a hot GPU counts as cool again
REPLAYS_PER_LANE_MINUTE = {1: 0.15, 2: 0.3, 3: 0.48, 4: 0.96, 5: 1.92, 6: 3.84}  # the limit by PCIe generation
_ACTION_KEYS = (FaultKey.NEEDS_REBOOT, FaultKey.NEEDS_RESET, FaultKey.NEEDS_ATTENTION)


@dataclass(frozen=True, slots=True)
class Indication:
    """Whether a dimension is bad now; `value` describes a bad one in more detail.

    `is_bad` is None for a value between the two thresholds.
    """

    key: FaultKey
    is_bad: bool | None
    value: str = ""
    is_mild: bool = False


@dataclass(frozen=True, slots=True)
class EarlierReadings:
    """What earlier readings of the same GPU showed: the links that were ever up, and the last count of PCIe replays."""

    links: tuple[bool, ...] = ()
    replays: tuple[float, int] | None = None  # time of the reading, and the count


def indications_of(reading: Vitals, before: EarlierReadings) -> Iterator[Indication]:
    """Yield an indication for each dimension that the reading covers. For a lost GPU, the only one is its loss."""
    yield Indication(FaultKey.GPU_LOST, reading.is_lost)
    if reading.is_lost:
        return
    yield from _action_indications(reading.recovery_action)
    yield from _reset_indications(reading.reset)
    yield from _memory_indications(reading)
    if reading.fabric_summary:
        yield Indication(FaultKey.FABRIC, reading.fabric_summary == FABRIC_UNHEALTHY)
    if reading.links:
        yield _link_indication(reading.links, before.links)
    yield from _heat_indications(reading)
    yield from _pcie_indications(reading, before.replays)


def _action_indications(action: int | None) -> Iterator[Indication]:
    if action is None:
        return
    wanted, value = ACTIONS.get(action, (FaultKey.NEEDS_ATTENTION, f"action-{action}")) if action else (None, "")
    for key in _ACTION_KEYS:
        yield Indication(key, key is wanted, value if key is wanted else "")


def _reset_indications(reset: DriverReset | None) -> Iterator[Indication]:
    if reset is None:
        return
    yield Indication(FaultKey.NEEDS_REBOOT, reset is DriverReset.FAILED, RESET_FAILED)
    is_fresh = reset in {DriverReset.UNDER_WAY, DriverReset.DONE}
    yield Indication(FaultKey.NEEDS_ATTENTION, is_fresh, DRIVER_RESET)


def _memory_indications(reading: Vitals) -> Iterator[Indication]:
    is_mild = reading.recovery_action == 0
    if reading.ecc_uncorrectable is not None:
        yield Indication(FaultKey.ECC_UNCORRECTABLE, reading.ecc_uncorrectable > 0, is_mild=is_mild)
    for key, flag in (
        (FaultKey.ECC_THRESHOLD, reading.sram_threshold_exceeded),
        (FaultKey.ROW_REMAP_FAILED, reading.remap_failed),
        (FaultKey.ROW_REMAP_PENDING, reading.remap_pending),
    ):
        if flag is not None:
            yield Indication(key, flag)


def _link_indication(now: tuple[bool, ...], before: tuple[bool, ...]) -> Indication:
    down = [str(link) for link, (was, is_up) in enumerate(zip(before, now, strict=False)) if was and not is_up]
    return Indication(FaultKey.NVLINK, bool(down), f"link-{down[0]}" if len(down) == 1 else f"{len(down)}-links")


def _heat_indications(reading: Vitals) -> Iterator[Indication]:
    margin, limit = reading.thermal_margin, reading.slowdown_margin
    if margin is not None and limit is not None:
        yield Indication(FaultKey.THERMAL, True if margin < limit else None if margin < limit + THERMAL_BACK else False)
    reasons = reading.clock_reasons
    if reasons is not None:
        value = "hw-thermal" if reasons & HW_THERMAL else "power-brake"
        yield Indication(FaultKey.THROTTLED, bool(reasons & (HW_THERMAL | HW_POWER_BRAKE)), value)


def _pcie_indications(reading: Vitals, before: tuple[float, int] | None) -> Iterator[Indication]:
    if before is None or reading.pcie_replays is None or reading.at - before[0] < 1:
        return
    minutes = (reading.at - before[0]) / 60
    new = max(0, reading.pcie_replays - before[1])
    fastest = max(REPLAYS_PER_LANE_MINUTE)
    usual = REPLAYS_PER_LANE_MINUTE[min(max(reading.pcie_generation or fastest, 1), fastest)]
    # Single packets are repeated now and then, so a rate over a short time means something only for several of them.
    yield Indication(FaultKey.PCIE, new > 2 + usual * (reading.pcie_lanes or 16) * minutes)


# Fault track: one dimension of one subject over time, with hysteresis in both directions.

CLEAR_AFTER = 3
RAISE_AFTER = {FaultKey.NVLINK: 2, FaultKey.FABRIC: 2, FaultKey.THERMAL: 2, FaultKey.THROTTLED: 2, FaultKey.PCIE: 2}
"""Dimensions in which one bad reading may be chance; the others are raised by the first."""
FLAPS, FLAP_SECONDS, CALM_SECONDS = 3, 3600.0, 600.0


@dataclass(frozen=True, slots=True)
class FaultTrack:
    """One dimension of one subject. `raised` are the recent times at which it was raised, the newest last."""

    key: FaultKey
    value: str = ""
    since: float = 0.0
    last_bad: float = 0.0
    bad: int = 0
    good: int = 0
    count: int = 0
    is_raised: bool = False
    is_mild: bool = False
    raised: tuple[float, ...] = ()

    @property
    def is_suspect(self) -> bool:
        """Return whether the last indication was bad but not enough to raise the fault."""
        return self.bad > 0 and not self.is_raised

    @property
    def is_idle(self) -> bool:
        """Return whether there is nothing to remember."""
        return not self.is_raised and not self.bad and not self.raised

    def is_flapping(self, now: float) -> bool:
        """Return whether the fault came and went several times within the last hour."""
        return sum(now - at < FLAP_SECONDS for at in self.raised) >= FLAPS

    def after(self, indication: Indication, at: float) -> Self:
        """Return the track after one more indication."""
        if indication.is_bad is None:
            return self
        return self._after_bad(indication, at) if indication.is_bad else self._after_good(at)

    def _after_bad(self, indication: Indication, at: float) -> Self:
        since = self.since if self.is_raised or self.bad else at
        now = replace(
            self,
            value=indication.value,
            is_mild=indication.is_mild,
            since=min(since, at),
            last_bad=max(self.last_bad, at),
            bad=self.bad + 1,
            good=0,
            count=self.count + 1,
        )
        if now.is_raised or now.bad < RAISE_AFTER.get(self.key, 1):
            return now
        lately = tuple(t for t in self.raised if at - t < FLAP_SECONDS)[-FLAPS:]
        return replace(now, is_raised=True, raised=(*lately, at))

    def _after_good(self, at: float) -> Self:
        good = self.good + 1
        if not self.is_raised:
            lately = tuple(t for t in self.raised if at - t < FLAP_SECONDS)
            return replace(self, bad=0, good=good, count=0, raised=lately)
        is_over = good >= CLEAR_AFTER and (not self.is_flapping(at) or at - self.last_bad >= CALM_SECONDS)
        if not is_over:
            return replace(self, bad=0, good=good)
        return replace(self, bad=0, good=good, count=0, is_raised=False, value="", is_mild=False)

    def shifted(self, seconds: float) -> Self:
        """Return the track with other times."""
        raised = tuple(at + seconds for at in self.raised)
        return replace(self, since=self.since + seconds, last_bad=self.last_bad + seconds, raised=raised)

    def to_wire(self) -> dict[str, Any]:
        """Return the track as JSON values."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Self:
        """Return what `to_wire` described. Raises: KeyError, TypeError, ValueError for anything else."""
        values = {name: wire[name] for name in cls.__slots__}
        return cls(**{**values, "key": FaultKey(wire["key"]), "raised": tuple(map(float, wire["raised"]))})


# Reference: the table of Xids as a page for users (`docs/xids.md`).

INTRODUCTION = """\
# Xid errors and what they mean here

<!-- Generated by `make docs` from dra_driver/node/health/xids.py; edit that table, not this page. -->

The class of a code counts only on a GPU whose driver does not report a recovery action (drivers before 565, some
products); if the driver reports one, this decides ([health.md](health.md)). Xids of the classes information,
application and follow never taint a device.

| Class | Means | Codes |
|---|---|---|
"""
MEANINGS = {
    XidClass.INFORMATION: "nothing to do",
    XidClass.APPLICATION: "the process was at fault or has ended; the GPU serves the next one",
    XidClass.FOLLOW: "belongs to another Xid or to the recovery action, which decide what to do",
    XidClass.LINK: "an NVLink is bad: `nvlink` and `xid`",
    XidClass.RESET: "the GPU needs a reset: `needs-reset` and `xid`",
    XidClass.REBOOT: "the machine needs a reboot: `needs-reboot` and `xid`; 79 is also `gpu-lost`",
    XidClass.SUPPORT: "a person has to examine the GPU, as for codes that are not listed: `needs-attention` and `xid`",
}


def page() -> str:
    """Return the page as Markdown."""
    rows = table().values()
    lines = []
    for kind in XidClass:
        codes = ", ".join(str(row.code) for row in rows if row.kind is kind)
        lines.append(f"| {kind} | {MEANINGS[kind]} | {codes} |\n")
    lines.append("\n## Every code\n| Xid | Class | Action of NVIDIA's catalogue | Source |\n|---|---|---|---|\n")
    lines += [f"| {row.code} | {row.kind} | {row.action or 'none'} | {row.source} |\n" for row in rows]
    return INTRODUCTION + "".join(lines)


if __name__ == "__main__":
    sys.stdout.write(page())


# Xid counts: how often each Xid was reported since the agent started, for the metrics.

MAX_CODES = 256  # limit on different codes; NVIDIA's driver has 176


class XidCounts:
    """Counts by code. Not thread-safe."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[int, str]] = Counter()

    def count(self, xids: Iterable[XidReport]) -> None:
        """Count reports."""
        for xid in xids:
            slot = (xid.code, str(xid.source))
            if slot in self._counts or len(self._counts) < MAX_CODES:
                self._counts[slot] += 1

    @property
    def counts(self) -> Mapping[int, int]:
        """How often each code was reported."""
        found: dict[int, int] = {}
        for (code, _), count in self._counts.items():
            found[code] = max(found.get(code, 0), count)
        return found
