"""The `health` section of a GPU in a profile: what a simulated GPU reports about itself.

In: the fields of a section. Out: `SimulatedHealth`. Every field is optional; a field that is left out is not reported,
as by a GPU or a driver that lacks it. The fields are described in docs/health.md.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from dra_driver.documents.fields import Fields
from dra_driver.hardware.evidence import BusState


class ComputeBehaviour(enum.StrEnum):
    """What a test of the GPU finds."""

    PASSES = "passes"
    WRONG_DATA = "wrong-data"
    HANGS = "hangs"
    CRASHES = "crashes"
    NOT_READY = "not-ready"


MAX_XIDS = 1000
_MIN, _MAX = -1000, 1 << 40


class ResetOutcome(enum.StrEnum):
    """What a reset of a simulated GPU does."""

    CURES = "cures"  # the reset ends the fault
    NOTHING = "nothing"
    FAILS = "fails"


@dataclass(frozen=True, slots=True)
class SimulatedXid:
    """One Xid, of the GPU or of one of its GPU instances."""

    code: int
    gi_id: int | None = None


@dataclass(frozen=True, slots=True)
class SimulatedHealth:
    """What one GPU reports; the units are those of `evidence.Vitals`. With `hangs` no call about the GPU returns."""

    recovery_action: int | None = None
    ecc_uncorrectable: int | None = None
    sram_threshold_exceeded: bool | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    thermal_margin: int | None = None
    slowdown_margin: int | None = None
    clock_reasons: int | None = None
    links_down: tuple[int, ...] = ()
    fabric_summary: int | None = None
    pcie_replays: int | None = None
    bus: BusState = BusState.HERE
    hangs: bool = False
    compute: ComputeBehaviour = ComputeBehaviour.PASSES
    reset: ResetOutcome = ResetOutcome.CURES
    xids: tuple[SimulatedXid, ...] = ()


NO_FAULTS = SimulatedHealth()


def decode_health(fields: Fields) -> SimulatedHealth:
    """Return a section as a value; the faults are collected by `fields`."""
    bus = fields.optional_text("bus", pattern="|".join(BusState), what=f"one of {', '.join(BusState)}")
    names = tuple(ComputeBehaviour)
    compute = fields.optional_text("compute", pattern="|".join(names), what=f"one of {', '.join(names)}")
    reset = fields.optional_text("reset", pattern="|".join(ResetOutcome), what=f"one of {', '.join(ResetOutcome)}")
    found = SimulatedHealth(
        recovery_action=fields.optional_integer("recoveryAction", 0, 99),
        ecc_uncorrectable=fields.optional_integer("eccUncorrectable", 0, _MAX),
        sram_threshold_exceeded=fields.optional_flag("sramThresholdExceeded"),
        remap_pending=fields.optional_flag("remapPending"),
        remap_failed=fields.optional_flag("remapFailed"),
        thermal_margin=fields.optional_integer("thermalMargin", _MIN, 1000),
        slowdown_margin=fields.optional_integer("slowdownMargin", _MIN, 1000),
        clock_reasons=fields.optional_integer("clockReasons", 0, _MAX),
        links_down=fields.integers("linksDown", 63),
        fabric_summary=fields.optional_integer("fabricSummary", 0, 255),
        pcie_replays=fields.optional_integer("pcieReplays", 0, _MAX),
        bus=BusState(bus) if bus in set(BusState) else BusState.HERE,
        hangs=bool(fields.optional_flag("hangs")),
        compute=ComputeBehaviour(compute) if compute in names else ComputeBehaviour.PASSES,
        reset=ResetOutcome(reset) if reset in set(ResetOutcome) else ResetOutcome.CURES,
        xids=tuple(_decode_xid(row) for row in fields.rows("xids", maximum=MAX_XIDS)),
    )
    fields.close()
    return found


def _decode_xid(row: Fields) -> SimulatedXid:
    found = SimulatedXid(row.integer("code", 0, 99_999), row.optional_integer("gi", 0, 15))
    row.close()
    return found
