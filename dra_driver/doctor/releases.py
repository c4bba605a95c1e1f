"""Older releases: what each of them can read, keep and undo of what this release records. Values.

Source: the code of those releases; lane/scenarios/install/test_versions.py runs them.
"""

from __future__ import annotations

from dataclasses import dataclass

from dra_driver.model.errors import UsageError
from dra_driver.plugin.ledger.recorded_steps import (
    RecordedFile,
    RecordedLimit,
    RecordedMode,
    RecordedPartition,
    RecordedSharing,
)


@dataclass(frozen=True, slots=True)
class OlderRelease:
    """What an older release can read and undo.

    `drivers` are the DRA drivers that it serves, `step_kinds` the kinds of recorded steps that it can undo.
    `keeps_health`: whether it avoids handing out faulty and cordoned devices.
    """

    name: str
    drivers: frozenset[str]
    step_kinds: frozenset[str]
    keeps_health: bool


_STEPS = (RecordedFile, RecordedMode, RecordedPartition, RecordedSharing, RecordedLimit)
RELEASES = {
    "0.1.1": OlderRelease(
        "0.1.1",
        drivers=frozenset({"gpu.nvidia.com"}),
        step_kinds=frozenset(step.kind for step in _STEPS),
        keeps_health=False,
    ),
    "0.2.0": OlderRelease(
        "0.2.0",
        drivers=frozenset({"gpu.nvidia.com"}),
        step_kinds=frozenset(step.kind for step in _STEPS),
        keeps_health=True,
    ),
}


def older_release(name: str) -> OlderRelease:
    """Return what is known of a release. Raises: UsageError("usage.release")."""
    found = RELEASES.get(name.removeprefix("v"))
    if found is None:
        known = ", ".join(RELEASES)
        raise UsageError("release", f"a downgrade to {name} can't be checked", hint=f"releases that are known: {known}")
    return found
