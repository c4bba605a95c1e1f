"""The remediation policy as a YAML file (`version: remediation/v1`), for `--remediation-policy` and `check-config`.

In: a path. Out: `RemediationPolicy`, or one InputError with every mistake, its line and its path.

    version: remediation/v1
    actions: {row-remap-pending: reset, gpu-lost: command}
    tries: 2
    weekly: {gpu: 3, node: 6}
    nodes: 1
    peers: auto
    reset: {timeout: 2m}
    reboot: {file: /var/run/reboot-required, within: 24h}
    command: {argv: [/opt/site/repair, "{uuid}"], timeout: 10m, root: agent}
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, PlainValidator
from pydantic_core import InitErrorDetails

from dra_driver.base.text.sections import Choice, Section, Text, described, fault, read_strictly, seconds, wrong
from dra_driver.base.wire import TaintEffect
from dra_driver.node.health.cases import (
    DEFAULT_ACTIONS,
    RESETTABLE,
    TREATABLE,
    CommandRoot,
    PeerRule,
    RemediationAction,
    RemediationPolicy,
    SiteCommand,
)
from dra_driver.node.health.faults import DEFAULT_RULES, EvictionLimit, FaultKey, HealthPolicy, HealthRule
from dra_driver.node.health.xids import FALLEN_OFF_BUS

MAX_NODES, MAX_TRIES, MAX_WEEKLY, MAX_ARGUMENTS = 100, 5, 100, 64
_DEFAULT, _DEFAULT_COMMAND = RemediationPolicy(), SiteCommand(())


def read_remediation_policy(path: Path) -> RemediationPolicy:
    """Read the file; keys that it leaves out keep their defaults.

    Raises: InputError("input.remediation-policy") with every mistake; "input.unreadable", "input.too-large",
    "input.not-yaml".
    """
    file = read_strictly(path, _RemediationFile, "remediation-policy", "remediation policy")
    return RemediationPolicy(
        {**DEFAULT_ACTIONS, **{key: action for key, action in file.actions.items() if action is not None}},
        file.nodes,
        file.tries,
        file.weekly.gpu,
        file.weekly.node,
        file.peers,
        file.reset.timeout,
        file.reboot.within,
        file.reboot.file,
        file.command.command() if file.command else None,
    )


def _file(value: object) -> Path:
    path = Path(value) if isinstance(value, str) else Path()
    if not path.is_absolute() or ".." in path.parts or path.name in {"", "."}:
        raise wrong(f"{described(value)} is not an absolute path of a file")
    return path


def _argument(text: str) -> str:
    if "\0" in text:
        raise wrong("an argument has a NUL")
    return text


def _arguments(argv: list[str]) -> list[str]:
    if not Path(argv[0]).is_absolute():
        raise wrong(f"{described(argv[0])} is not an absolute path")
    return argv


class _WeeklySection(Section):
    gpu: int = Field(default=_DEFAULT.weekly_gpu, ge=1, le=MAX_WEEKLY)
    node: int = Field(default=_DEFAULT.weekly_node, ge=1, le=MAX_WEEKLY)


class _ResetSection(Section):
    timeout: Annotated[float, seconds(10, 1800)] = _DEFAULT.reset_timeout_s


class _RebootSection(Section):
    file: Annotated[Path, PlainValidator(_file)] | None = None
    within: Annotated[float, seconds(600, 30 * 86400)] = _DEFAULT.reboot_within_s


class _CommandSection(Section):
    argv: Annotated[list[Annotated[Text, AfterValidator(_argument)]], AfterValidator(_arguments)] = Field(
        min_length=1, max_length=MAX_ARGUMENTS, description="a program and its arguments"
    )
    timeout: Annotated[float, seconds(1, 7200)] = _DEFAULT_COMMAND.timeout_s
    root: Choice[CommandRoot] = _DEFAULT_COMMAND.root

    def command(self) -> SiteCommand:
        """Return the section as a value."""
        return SiteCommand(tuple(self.argv), self.timeout, self.root)


class _RemediationFile(Section):
    version: Literal["remediation/v1"]
    actions: dict[Choice[FaultKey], Choice[RemediationAction] | None] = Field(default={})
    tries: int = Field(_DEFAULT.tries, ge=1, le=MAX_TRIES)
    weekly: _WeeklySection = _WeeklySection()
    nodes: int = Field(_DEFAULT.nodes, ge=1, le=MAX_NODES)
    peers: Choice[PeerRule] = _DEFAULT.peers
    reset: _ResetSection = _ResetSection()
    reboot: _RebootSection = _RebootSection()
    command: _CommandSection | None = None

    def combined_faults(self) -> Iterator[InitErrorDetails]:
        """Yield the faults of actions that don't help against the fault, or that the file does not define."""
        for key, action in self.actions.items():
            if action not in {None, RemediationAction.NONE} and key not in TREATABLE:
                yield fault(f"no action cures {key}", "actions", key)
            elif action is RemediationAction.RESET and key not in RESETTABLE:
                yield fault(f"a reset does not cure {key}", "actions", key)
            elif action is RemediationAction.COMMAND and "command" not in self._given:
                yield fault("there is no section `command`", "actions", key)


# The health policy as a YAML file (`version: health/v1`), which `--health-policy` and `check-config` read.

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
