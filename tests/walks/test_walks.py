"""How many files a GPU, a claim and a selector pass: what a newcomer opens to follow one of them.

From the first scan until the slices are written; from NodePrepareResources to the answer, and the same of
NodeUnprepareResources; the whole command. A file counts if one of its functions ran on the walk; of the agent, every
file that was executed counts. Not covered: how long the files are (tests/test_structure.py).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dra_driver.simulator.example import load_example, load_objects, text_of
from dra_driver.simulator.run import EmbeddedNode

ROOT = Path(__file__).resolve().parents[2]
TRACED = str(Path(__file__).parent / "support" / "traced.py")
EXAMPLE = load_example(ROOT / "examples" / "resourceclaims" / "01-one-gpu.yaml")
CLASSES = [
    wire for path in sorted((ROOT / "deviceclasses").glob("*.yaml")) for wire in load_objects(path, text_of(path))
]
# The aims are 60, 50, 75 and 110. The agent's files are above theirs and may only shrink.
MOST = {"slices": 60, "claim": 50, "explain": 75, "all": 152}


def require_short(walks: dict[str, list[str]], *names: str) -> None:
    """Fail for a walk that is too long, with its files in the order in which they were entered, or was not traced."""
    for name in names:
        files = walks[name]
        assert files, f"nothing of the walk {name!r} was traced"
        listed = "\n  ".join(files)
        assert len(files) <= MOST[name], f"{name}: {len(files)} files, at most {MOST[name]}:\n  {listed}"


@pytest.mark.long
def test_the_walks_of_a_gpu_and_a_claim_and_the_agent_are_short(tmp_path: Path) -> None:
    out = tmp_path / "walks.json"
    node = EmbeddedNode("dgx-h100", classes=CLASSES, command=(sys.executable, TRACED, str(out), "agent"))
    try:
        node.start()
        (report, *_) = list(node.runner().run(EXAMPLE))
        assert report.is_good, [report.unmet, report.left]
    finally:
        node.stop()
    require_short(json.loads(out.read_text()), "slices", "claim", "all")


@pytest.mark.long
def test_the_walk_of_a_selector_is_short(tmp_path: Path) -> None:
    out = tmp_path / "walks.json"
    words = ("cel", "explain", "-e", 'device.driver == "gpu.nvidia.com"', "--fleet", "dgx-h100")
    subprocess.run([sys.executable, TRACED, str(out), *words], check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
    require_short(json.loads(out.read_text()), "explain")
