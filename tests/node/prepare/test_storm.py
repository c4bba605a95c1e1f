"""A short storm over one node; `python -m tests.node.support.storm 10000` is the long one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

OPERATIONS = 150


@pytest.mark.long
@pytest.mark.timeout(600)
def test_no_device_has_two_claims_and_nothing_is_lost_while_two_agents_are_killed_again_and_again() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.node.support.storm", str(OPERATIONS)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[3],
        timeout=500,
    )
    report = json.loads(done.stdout)
    assert report["wrong"] == [], done.stderr
    assert report["operations"] >= OPERATIONS
    assert sum(report["signals"].values()) >= 1
