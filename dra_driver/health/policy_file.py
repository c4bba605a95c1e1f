"""The health policy as a YAML file (`version: health/v1`), which `--health-policy` and `check-config` read.

In: a path. Out: `HealthPolicy`, or one InputError with every mistake, its line and its path.

    version: health/v1
    ignoreXids: [92]
    faults:
      thermal: {effect: NoSchedule}
      xid: {timeToLive: 24h}
      pcie: {ignore: true}
      gpu-lost: {effect: NoExecute}
    evictions: {devices: 5, period: 10m}
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic_core import InitErrorDetails

from dra_driver.documents.section import Choice, Section, fault, seconds, wrong
from dra_driver.documents.strict_file import read_strictly
from dra_driver.health.fault import FaultKey
from dra_driver.health.policy import DEFAULT_RULES, EvictionLimit, HealthPolicy, HealthRule
from dra_driver.health.xid_table import FALLEN_OFF_BUS
from dra_driver.model.taints import TaintEffect

MAX_XID = 9999
MAX_DEVICES, MAX_PERIOD = 100, 86400
_LIMIT = EvictionLimit()
_NEVER_EVICTS = {
    FaultKey.CORDONED: "a cordon never deletes pods",
    FaultKey.UNMONITORED: "a library that does not answer says nothing about the GPUs",
}


def read_health_policy(path: Path) -> HealthPolicy:
    """Read the file; keys that it leaves out keep their defaults.

    Raises: InputError("input.health-policy") with every mistake; "input.unreadable", "input.too-large",
    "input.not-yaml".
    """
    file = read_strictly(path, _HealthFile, "health-policy", "health policy")
    given = {key: section.rule(DEFAULT_RULES[key]) for key, section in file.faults.items() if section is not None}
    limit = EvictionLimit(file.evictions.devices, int(file.evictions.period))
    return HealthPolicy({**DEFAULT_RULES, **given}, frozenset(file.ignore_xids), limit)


class _FaultSection(Section):
    effect: Choice[TaintEffect] | None = None
    ignore: bool = False
    time_to_live: Annotated[float, seconds()] | None = None

    def rule(self, default: HealthRule) -> HealthRule:
        """Return the rule; what the section leaves out is that of `default`."""
        escalates_after = None if self.effect else default.escalates_after
        return HealthRule(self.effect or default.effect, escalates_after, self.time_to_live, self.ignore)


class _EvictionsSection(Section):
    devices: int = Field(default=_LIMIT.devices, ge=1, le=MAX_DEVICES)
    period: Annotated[float, seconds(60, MAX_PERIOD)] = _LIMIT.period_s


def _ignorable(xid: int) -> int:
    if xid == FALLEN_OFF_BUS:
        raise wrong(f"{FALLEN_OFF_BUS} means that the GPU is lost, which can't be ignored")
    return xid


class _HealthFile(Section):
    version: Literal["health/v1"]
    ignore_xids: list[Annotated[int, Field(ge=0, le=MAX_XID), AfterValidator(_ignorable)]] = Field(
        [], description=f"a number from 0 to {MAX_XID}"
    )
    faults: dict[Choice[FaultKey], _FaultSection | None] = Field(default={})
    evictions: _EvictionsSection = _EvictionsSection()

    def combined_faults(self) -> Iterator[InitErrorDetails]:
        """Yield the faults of rules that don't go with their keys."""
        for key, rule in self.faults.items():
            if rule and rule.effect is TaintEffect.NO_EXECUTE and key in _NEVER_EVICTS:
                yield fault(f"NoExecute deletes pods, and {_NEVER_EVICTS[key]}", "faults", key, "effect")
            if key is FaultKey.REMEDIATION and rule and (rule.ignore or rule.effect is TaintEffect.NONE):
                yield fault("a GPU that is being repaired must get no new claim", "faults", key, "effect")
