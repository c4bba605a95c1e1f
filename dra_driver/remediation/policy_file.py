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

import re
from pathlib import Path

from dra_driver.documents.document import read_document, with_line
from dra_driver.documents.fields import Fields
from dra_driver.health.fault import FaultKey
from dra_driver.model.errors import InputError
from dra_driver.remediation.policy import (
    DEFAULT_ACTIONS,
    RESETTABLE,
    TREATABLE,
    CommandRoot,
    PeerRule,
    RemediationAction,
    RemediationPolicy,
    SiteCommand,
)

VERSION = "remediation/v1"
MAX_NODES, MAX_TRIES, MAX_WEEKLY, MAX_ARGUMENTS = 100, 5, 100, 64
_DURATION = re.compile(r"(?P<number>[1-9][0-9]{0,6})(?P<unit>[smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def read_remediation_policy(path: Path) -> RemediationPolicy:
    """Read the file; keys that it leaves out keep their defaults.

    Raises: InputError("input.remediation-policy") with every mistake; "input.unreadable", "input.too-large",
    "input.not-yaml".
    """
    lines: dict[str, int] = {}
    document = read_document(path, lines)
    faults: list[str] = []
    root = Fields(document, "", faults)
    version = root.optional_text("version")
    if version != VERSION:
        root.fault("version", f"expected {VERSION!r}, got {version!r}" if version else f"missing, expected {VERSION!r}")
    policy = _policy(root)
    root.close()
    if faults:
        listed = "\n  ".join(with_line(fault, lines) for fault in faults)
        mistakes = f"{len(faults)} {'mistakes' if len(faults) > 1 else 'mistake'}"
        raise InputError("remediation-policy", f"remediation policy {path} has {mistakes}:\n  {listed}")
    return policy


def _policy(root: Fields) -> RemediationPolicy:
    default = RemediationPolicy()
    weekly, reset, reboot = root.section("weekly"), root.section("reset"), root.section("reboot")
    command = _command(root.section("command")) if root.has("command") else None
    policy = RemediationPolicy(
        _actions(root.section("actions"), has_command=command is not None),
        root.optional_integer("nodes", 1, MAX_NODES) or default.nodes,
        root.optional_integer("tries", 1, MAX_TRIES) or default.tries,
        weekly.optional_integer("gpu", 1, MAX_WEEKLY) or default.weekly_gpu,
        weekly.optional_integer("node", 1, MAX_WEEKLY) or default.weekly_node,
        PeerRule(root.optional_text("peers", pattern="auto|always|never", what="auto, always or never") or "auto"),
        _seconds(reset, "timeout", 10, 1800) or default.reset_timeout_s,
        _seconds(reboot, "within", 600, 30 * 86400) or default.reboot_within_s,
        _file(reboot),
        command,
    )
    for section in (weekly, reset, reboot):
        section.close()
    return policy


def _actions(row: Fields, *, has_command: bool) -> dict[FaultKey, RemediationAction]:
    found = dict(DEFAULT_ACTIONS)
    for key in FaultKey:
        if not row.has(key):
            continue
        text = row.optional_text(key, pattern="none|reset|reboot|command", what="none, reset, reboot or command")
        action = RemediationAction(text or "none")
        if action is not RemediationAction.NONE and key not in TREATABLE:
            row.fault(key, f"no action cures {key}")
        elif action is RemediationAction.RESET and key not in RESETTABLE:
            row.fault(key, f"a reset does not cure {key}")
        elif action is RemediationAction.COMMAND and not has_command:
            row.fault(key, "there is no section `command`")
        else:
            found[key] = action
    row.close()
    return found


def _file(row: Fields) -> Path | None:
    text = row.optional_text("file")
    if text is None:
        return None
    path = Path(text)
    if not path.is_absolute() or ".." in path.parts or path.name in {"", "."}:
        row.fault("file", f"{text!r:.100} is not an absolute path of a file")
    return path


def _command(row: Fields) -> SiteCommand:
    argv = row.texts("argv")
    if not argv:
        row.fault("argv", "missing, expected a program and its arguments")
    elif not Path(argv[0]).is_absolute():
        row.fault("argv", f"{argv[0]!r:.100} is not an absolute path")
    if len(argv) > MAX_ARGUMENTS:
        row.fault("argv", f"more than {MAX_ARGUMENTS} arguments")
    if any("\0" in one for one in argv):
        row.fault("argv", "an argument has a NUL")
    root = row.optional_text("root", pattern="agent|driver", what="agent or driver")
    timeout = _seconds(row, "timeout", 1, 7200)
    row.close()
    return SiteCommand(argv, timeout or SiteCommand(()).timeout_s, CommandRoot(root or "agent"))


def _seconds(row: Fields, key: str, minimum: float, maximum: float) -> float | None:
    text = row.optional_text(key, pattern=_DURATION.pattern, what="a duration such as 90s, 10m, 24h or 7d")
    match = _DURATION.fullmatch(text or "")
    if match is None:
        return None
    seconds = float(int(match["number"]) * _UNITS[match["unit"]])
    if not minimum <= seconds <= maximum:
        row.fault(key, f"must be from {minimum:.0f}s to {maximum:.0f}s")
    return seconds
