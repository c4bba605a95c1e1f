"""Indications: what one reading of a GPU shows about each dimension of its health.

Pure. In: a reading, and what earlier readings showed. Out: an indication for each dimension that the reading covers.
Thresholds and their sources: NVIDIA's memory error management guide (recovery action, row remapping, SRAM threshold),
nvml.h (clock event reasons, fabric summary, T.limit), DCGM's health watches (PCIe replays per lane and minute).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from dra_driver.hardware.evidence import DriverReset, Vitals
from dra_driver.health.fault import DRIVER_RESET, RESET_FAILED, FaultKey

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
