"""SIGKILL within prepare and unprepare, restart: nothing leaked, nothing lost.

The fast lane kills at some lines of ours; `python -m tests.support.plugin.kill_points 1`, and `mig_kill_points` and
`sharing_kill_points` in tests/plugin/support, kill at each.
"""

import json

import pytest

from tests.support.progress import output_of

pytestmark = pytest.mark.timeout(900)  # each program may take its time while it makes progress

STRIDE = 9
MIG_STRIDE = 97
SHARING_STRIDE = 197


@pytest.mark.parametrize("call", ["prepare", "unprepare", "repeat", "reallocate"])
def test_a_kill_at_any_line_leaks_nothing_and_loses_nothing(call: str) -> None:
    report = json.loads(output_of("tests.support.plugin.kill_points", [str(STRIDE), call]))
    assert report["wrong"] == []
    assert min(report["kills"].values()) > 20


@pytest.mark.parametrize("call", ["prepare", "unprepare", "repeat", "reallocate", "whole"])
def test_a_kill_at_any_line_leaves_no_partition_and_no_mig_mode_behind(call: str) -> None:
    report = json.loads(output_of("tests.plugin.support.mig_kill_points", [str(MIG_STRIDE), call]))
    assert report["wrong"] == []
    assert min(report["kills"].values()) > 5


@pytest.mark.parametrize("call", ["first", "joining", "leaving", "last", "repeat"])
def test_a_kill_at_any_line_leaves_a_device_shared_for_those_who_hold_it_and_for_nobody_else(call: str) -> None:
    report = json.loads(output_of("tests.plugin.support.sharing_kill_points", [str(SHARING_STRIDE), call]))
    assert report["wrong"] == []
    assert min(report["kills"].values()) > 2
