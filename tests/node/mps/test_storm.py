"""A short storm of kills and hostile clients loses nothing.

A long one: `python -m tests.node.mps.support.storm 10000`. Each run of this test has another seed.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys

import pytest

OPERATIONS = 25


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="file systems, cgroups and processes of other users need root")
def test_kills_and_hostile_clients_lose_nothing():
    seed = str(random.randrange(1 << 30))  # with this number the program repeats the same choices
    command = [sys.executable, "-m", "tests.node.mps.support.storm", str(OPERATIONS), seed]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170, check=True)
    result = json.loads(done.stdout)
    assert result["wrong"] == [], seed
    assert result["operations"] == OPERATIONS
