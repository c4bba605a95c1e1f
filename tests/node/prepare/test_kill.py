"""SIGKILL within prepare and unprepare, restart: nothing leaked, nothing lost.

Each program kills a call once after each change of a file that it makes, which is every state that a kill can leave.
With a stride of 1 (`python -m tests.node.support.crash_points 1`) it kills at every line.
"""

import json

import pytest

from tests.support.programs.progress import output_of

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]  # each program may take its time while it makes progress


def killed(program: str) -> dict[str, int]:
    """Return the number of kills by call. Raises: AssertionError if one of them left something wrong."""
    report = json.loads(output_of(f"tests.node.support.{program}", []))
    assert report["wrong"] == []
    return report["kills"]


def test_a_kill_after_any_change_of_a_file_leaks_nothing_and_loses_nothing() -> None:
    kills = killed("crash_points")
    assert kills["prepare"] >= 5
    assert kills["unprepare"] >= 3
    assert kills["reallocate"] >= 8
    assert kills["repeat"] >= 1


def test_a_kill_after_any_change_of_a_file_leaves_no_partition_and_no_mig_mode_behind() -> None:
    kills = killed("mig_crash_points")
    assert min(kills[call] for call in ("prepare", "unprepare", "reallocate", "whole")) >= 5
    assert kills["repeat"] >= 1
    assert kills["alone"] >= 3


def test_a_kill_after_any_change_of_a_file_leaves_a_device_shared_for_its_holders_alone() -> None:
    kills = killed("sharing_crash_points")
    assert min(kills[call] for call in ("first", "joining", "leaving", "last")) >= 5
    assert kills["repeat"] >= 1


def test_a_kill_after_any_change_of_a_file_gives_no_compute_unit_to_two_claims_or_to_an_ended_one() -> None:
    kills = killed("units_crash_points")
    assert min(kills[call] for call in ("choosing", "returning")) >= 5
    assert kills["leaving"] >= 4
    assert kills["repeat"] >= 1
