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

from pathlib import Path

from dra_driver.documents.fields import Fields
from dra_driver.documents.strict_file import check_version, read_strictly
from dra_driver.health.fault import FaultKey
from dra_driver.health.policy import DEFAULT_RULES, EvictionLimit, HealthPolicy, HealthRule
from dra_driver.health.xid_table import FALLEN_OFF_BUS
from dra_driver.model.taints import TaintEffect

VERSION = "health/v1"
MAX_XID = 9999
MAX_DEVICES, MAX_PERIOD = 100, 86400
_NEVER_EVICTS = {
    FaultKey.CORDONED: "a cordon never deletes pods",
    FaultKey.UNMONITORED: "a library that does not answer says nothing about the GPUs",
}


def read_health_policy(path: Path) -> HealthPolicy:
    """Read the file; keys that it leaves out keep their defaults.

    Raises: InputError("input.health-policy") with every mistake; "input.unreadable", "input.too-large",
    "input.not-yaml".
    """
    return read_strictly(path, _policy, "health-policy", "health policy")


def _policy(root: Fields) -> HealthPolicy:
    check_version(root, VERSION)
    ignored = frozenset(root.integers("ignoreXids", MAX_XID))
    if FALLEN_OFF_BUS in ignored:
        root.fault("ignoreXids", f"{FALLEN_OFF_BUS} means that the GPU is lost, which can't be ignored")
    rules = dict(DEFAULT_RULES)
    section = root.section("faults")
    for key in FaultKey:
        if section.has(key):
            rules[key] = _rule(section.section(key), key, DEFAULT_RULES[key])
    section.close()
    return HealthPolicy(rules, ignored, _evictions(root.section("evictions")))


def _evictions(row: Fields) -> EvictionLimit:
    default = EvictionLimit()
    devices, period = row.optional_integer("devices", 1, MAX_DEVICES), row.optional_seconds("period")
    if period is not None and not 60 <= period <= MAX_PERIOD:
        row.fault("period", "must be from 1m to 1d")
    row.close()
    return EvictionLimit(devices or default.devices, int(period or default.period_s))


def _rule(row: Fields, key: FaultKey, default: HealthRule) -> HealthRule:
    effect = row.optional_text("effect", pattern="None|NoSchedule|NoExecute", what="None, NoSchedule or NoExecute")
    if effect == TaintEffect.NO_EXECUTE and key in _NEVER_EVICTS:
        row.fault("effect", f"NoExecute deletes pods, and {_NEVER_EVICTS[key]}")
    is_ignored = row.optional_flag("ignore") is True
    if key is FaultKey.REMEDIATION and (is_ignored or effect == TaintEffect.NONE):
        row.fault("effect", "a GPU that is being repaired must get no new claim")
    rule = HealthRule(
        TaintEffect(effect) if effect else default.effect,
        None if effect else default.escalates_after,
        row.optional_seconds("timeToLive"),
        is_ignored,
    )
    row.close()
    return rule
