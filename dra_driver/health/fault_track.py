"""Fault track: one dimension of one subject over time, with hysteresis in both directions.

Pure. In: indications with their times. Out: whether the fault is raised. It is raised by `RAISE_AFTER` bad indications
in a row and ends after `CLEAR_AFTER` good ones; a fault that was raised `FLAPS` times within an hour ends only after
ten good minutes. `since` is the time of the first bad indication of the current fault.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from dra_driver.health.fault import FaultKey
from dra_driver.health.indications import Indication

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
