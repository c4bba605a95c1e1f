"""A kill between any two lines of start, stop and change leaves nothing that the next supervisor does not set right.

Every line: `python -m tests.mps.support.kill_points 1` (half an hour). Here only some of them, others in each run.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys

STRIDE = 200


def test_kills_of_supervisor_and_daemon_leak_nothing():
    where = f"{STRIDE}:{random.randrange(STRIDE // 2)}"  # replayed by these words
    command = [sys.executable, "-m", "tests.mps.support.kill_points", where]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=True)
    result = json.loads(done.stdout)
    assert result["wrong"] == [], where
    assert all(result["kills"].values()), result["kills"]
