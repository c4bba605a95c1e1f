"""Advice: claims whose devices are idle, and claims for which a smaller device would be enough.

In: what was counted. Out: idle claims with their cost, and for each claim a smaller profile or the reason why there is
none. The advised profile is the smallest with 1.2 times the largest amount of memory that was used, and 1.2 times the
multiprocessors that 95 % of the readings did not exceed. With less than a day of data, or without data about
multiprocessors, nothing is advised.
"""

from __future__ import annotations

from dataclasses import dataclass

from dra_driver.views.usage.profiles import SHARE, WHOLE, ProfileSize, profiles_of, size_of
from dra_driver.views.usage.usage_counts import ClaimUsage

MARGIN = 1.2
MIN_HOURS = 24.0
IDLE_RATIO = 0.05
IDLE_LEAST_HOURS = 1.0


@dataclass(frozen=True, slots=True)
class IdleClaim:
    """A claim whose devices were idle. `hours` are the idle hours of each device; `cost` is that of all devices."""

    namespace: str
    name: str
    devices: int
    model: str
    profile: str
    hours: float
    cost: float | None


@dataclass(frozen=True, slots=True)
class SizeAdvice:
    """The advised profile of a claim, and the reason for it; `profile` is "" if nothing is advised."""

    namespace: str
    name: str
    model: str
    current: str
    profile: str
    reason: str
    uid: str = ""
    gpus_saved: float = 0.0
    saved_per_hour: float | None = None


def is_idle(claim: ClaimUsage) -> bool:
    """Return whether a claim was measured for an hour, and busy for less than a twentieth of it."""
    hours = claim.measured_s / 3600 / claim.devices
    return hours >= IDLE_LEAST_HOURS and claim.busy_s < IDLE_RATIO * claim.measured_s


def idle_hours(claim: ClaimUsage) -> float:
    """Return for how many hours each device of a claim did nothing, as far as that was measured."""
    return (claim.measured_s - claim.busy_s) / 3600 / claim.devices


def size_for(claim: ClaimUsage) -> tuple[ProfileSize | None, str]:
    """Return the profile that would be enough for a claim, and why; None if there is no advice."""
    current = size_of(claim.model, claim.profile)
    if claim.profile.endswith(SHARE):
        return None, "no advice: the claim has a share"
    if current is None:
        return None, f"no advice: the profiles of {claim.model or 'its model'} are not known"
    if claim.measured_s / 3600 / claim.devices < MIN_HOURS:
        return None, "no advice: less than 24 hours of data"
    if claim.sm_p95 is None or claim.memory_max_bytes is None:
        return None, "no advice: no data about multiprocessors or memory (telemetry.level: full)"
    memory, sms = claim.memory_max_bytes * MARGIN, claim.sm_p95 * current.sm_part * MARGIN
    sizes = profiles_of(claim.model)
    fits = next((one for one in sizes if one.memory_bytes >= memory and one.sm_part >= sms), None)
    if fits is None or fits.gpu_part >= current.gpu_part:
        return None, "its size is right"
    used = f"{claim.memory_max_bytes / (1 << 30):.1f} GiB and {claim.sm_p95:.0%} of the multiprocessors of its"
    kind = "GPU" if claim.profile == WHOLE else claim.profile
    return fits, f"it used at most {used} {kind}"
