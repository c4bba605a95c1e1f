"""The storm's own eyes: each thing that must never happen is shown to them once, and they report it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.storm.support import sandbox

SHOWN = {
    "two prepared claims on one GPU": "has two holders",
    "a claim prepared while a process of another has the GPU open": "has two holders",
    "a partition under a process on the whole GPU": "has two holders",
    "a process that may open the device of the next claim": "has two holders",
    "shares of one GPU": "",
    "a process that has ended": "",
    "a partition that is destroyed under its claim": "has lost",
    "a partition that is destroyed under a process": "has lost",
    "a partition and a time slice of GPUs that were lost and came back": "",
    "a partition that is destroyed after its GPU came back": "has lost",
    "a refusal because of a partition that nothing took from its claim": "was refused",
    "a refusal because of a partition whose GPU was lost": "",
    "a GPU that is reset under a claim": "was reset under",
    "a GPU that is reset before its claim came": "",
    "a CDI file that is gone": "no usable CDI file",
    "a CDI file with another device's node": "was given other nodes",
    "two files that mount different folders in one place": "gets both",
    "two claims under MPS": "",
    "two claims with a share each, and one GPU": "has two holders",
    "a GPU that a virtual machine loses": "is bound to 'nvidia'",
    "a GPU that leaves a virtual machine which is ending": "",
    "a GPU that the next claim gets while a virtual machine is ending": "has two holders",
    "a GPU that a virtual machine gets under a claim": "is bound to 'vfio-pci'",
    "a file of an unprepared claim": "has its CDI file",
    "a cordoned GPU that is offered": "although",
    "a GPU that is offered before it was seen out": "",
    "a cured GPU that is offered": "",
    "a GPU that was given up and is offered after a reset": "although",
    "a total that falls": "fell from",
    "a total of a process that was restarted": "",
    "hours that are charged to another namespace": "team-b had devices",
    "hours that are charged twice": "team-a had devices",
    "hours of a GPU beside a share": "",
}


@pytest.fixture(scope="module")
def found() -> dict[str, list[str]]:
    if not sandbox.is_permitted():
        pytest.skip("needs root, and the right to make namespaces")
    command = [sys.executable, "-m", "tests.storm.support.shown"]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=root, check=False)
    assert done.returncode == 0, done.stderr
    reports: dict[str, list[str]] = json.loads(done.stdout)
    return reports


@pytest.mark.parametrize("what", SHOWN)
def test_a_storm_reports_what_must_never_happen_and_nothing_else(found: dict[str, list[str]], what: str) -> None:
    text = " | ".join(found[what])
    assert SHOWN[what] in text
    assert bool(text) == bool(SHOWN[what])


def test_every_scene_is_looked_at(found: dict[str, list[str]]) -> None:
    assert set(found) == set(SHOWN)
