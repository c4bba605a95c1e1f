"""A kill between any two lines of start, stop and change leaves nothing that the next supervisor does not set right.

Every line: `python -m tests.mps.kill_points 1`. Here only some of them.
"""

from __future__ import annotations

import json
import subprocess
import sys

STRIDE = 61


def test_kills_of_supervisor_and_daemon_leak_nothing():
    command = [sys.executable, "-m", "tests.mps.kill_points", str(STRIDE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=True)
    result = json.loads(done.stdout)
    assert result["wrong"] == []
    assert all(count >= 2 for count in result["kills"].values()), result["kills"]
