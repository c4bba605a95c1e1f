"""A kill between any two lines of start, stop and change leaves nothing that the next supervisor does not repair.

All lines: `python -m tests.node.mps.support.crash_points 1` (half an hour). Here some of them, others in each run.
"""

from __future__ import annotations

import json
import random

import pytest

from tests.support.programs.progress import output_of

STRIDE = 300


@pytest.mark.long
@pytest.mark.timeout(900)  # the program may take its time while it makes progress
def test_kills_of_supervisor_and_daemon_leak_nothing():
    where = f"{STRIDE}:{random.randrange(STRIDE // 2)}"  # with this argument the program repeats the same kills
    result = json.loads(output_of("tests.node.mps.support.crash_points", [where]))
    assert result["wrong"] == [], where
    assert all(result["kills"].values()), result["kills"]
