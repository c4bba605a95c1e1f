"""A short storm over one node; `make storm` is the whole one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.storm.support import sandbox

OPERATIONS = 150  # of each node


@pytest.mark.long
@pytest.mark.parametrize("partitions", ["on-demand", "declared"])
def test_nothing_goes_wrong_in_a_short_storm(partitions: str) -> None:
    if not sandbox.is_permitted():
        pytest.skip("needs root, and the right to make namespaces")
    command = [sys.executable, "-m", "tests.storm.support", str(OPERATIONS), "1", "--partitions", partitions]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False)
    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    assert report["wrong"] == []
    assert report["operations"] >= OPERATIONS
    assert report["kills"]["kills inside calls"] > 0
