"""Short storms over one node, with partitions on demand and with declared ones; `make storm` is the long one."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.storm.support import sandbox

OPERATIONS = 150


@pytest.mark.long
@pytest.mark.timeout(600)  # a GPU whose fault ended may be tested for minutes before it is offered again
@pytest.mark.parametrize("partitions", ["on-demand", "declared"])
def test_no_device_has_two_holders_and_nothing_is_lost_while_everything_changes_and_agents_are_killed(
    partitions: str,
) -> None:
    if not sandbox.is_permitted():
        pytest.skip("needs root, and the right to make namespaces")
    seed = str(random.randrange(1 << 30))  # with this number the program makes the same choices
    command = [sys.executable, "-m", "tests.storm.support", str(OPERATIONS), seed, "--partitions", partitions]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    report = json.loads(done.stdout)
    assert report["wrong"] == [], f"{' '.join(command[1:])}\n{done.stderr}"
    assert report["operations"] >= OPERATIONS
    assert report["kills"]["kills inside calls"] >= 1
