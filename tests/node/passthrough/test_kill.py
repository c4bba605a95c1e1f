"""SIGKILL between any two steps of binding a GPU for a virtual machine or of returning it: no driver is missing.

A Radeon with its audio and USB-C functions, and a virtual function of Intel's with a driver of its own.
"""

import json

import pytest

from tests.support.programs.progress import output_of

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]  # the program may take its time while it makes progress


def test_a_kill_between_any_two_steps_leaves_no_function_without_its_driver() -> None:
    report = json.loads(output_of("tests.node.passthrough.support.crash_points", []))
    assert report["wrong"] == []
    for machine, functions in (("radeon", 3), ("function", 1)):  # four writes and their records each
        assert report["kills"][f"{machine}-prepare"] >= 8 * functions + 4
        assert report["kills"][f"{machine}-unprepare"] >= 4 * functions + 2
