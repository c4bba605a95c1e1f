"""The demo of a faulty GPU (`--mending`): how the agent handles it, from the fault until it is offered again.

In: a profile. Out: what happens to one of its GPUs, line by line. The agent, its health monitor and its remediation are
the real ones; only the GPU and its reset are simulated.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from dra_driver.cli.output import print_text
from dra_driver.embedded.node import EmbeddedNode
from dra_driver.hardware.simulated.profile import profile_path
from dra_driver.model.errors import InputError
from dra_driver.remediation.case import Stage

SECONDS = 90.0
_STEP = re.compile(r" remediation device=(?P<gpu>\S+) .*step=(?P<stage>\S+)(?P<waits> reason=\"(?P<why>[^\"]*)\")?")
_MEANS = {
    Stage.DETECTED: "the driver asks for a reset",
    Stage.TAINTED: "no new claim gets the GPU",
    Stage.DRAIN_ASKED: "the agent would inform its pods now, and wait until they have ended",
    Stage.DRAINED: "no claim holds it, and no other node is being remediated",
    Stage.NVML_LET_GO: "the agent has closed the driver's library",
    Stage.ACTED: "the GPU was reset",
    Stage.SAME_UUID_FOUND: "the same GPU is there again",
    Stage.VALIDATED: "its readings are good, and it computes correctly",
    Stage.RETURNED: "it is offered again",
}


def show_remediation(out: Any, profile: str) -> bool:
    """Let a GPU of the profile need a reset; return whether it was offered again. Raises: InputError, NodeError."""
    folder = Path(tempfile.mkdtemp(prefix="dra-"))
    path = folder / "profile.yaml"
    try:
        pci = _write(profile, path, 0)
        flags = {"--remediation": "on", "--lease-namespace": "default"}
        node = EmbeddedNode(str(path), classes=(), mig="static", flags=flags)
        try:
            node.start()
            _write(profile, path, 1)
            print_text(out, f": GPU {pci} reports the recovery action 1, GPU reset", bold="A GPU becomes faulty")
            return _follow(out, node)
        finally:
            node.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write(profile: str, path: Path, action: int) -> str:
    """Write the profile with a recovery action for its first whole GPU, and return the GPU's PCI address."""
    content = yaml.safe_load(profile_path(profile).read_text("utf-8"))
    whole = [gpu for gpu in content.get("gpus", ()) if "mig" not in gpu]
    if not whole:
        raise InputError("profile", f"{profile} has no whole GPU")
    whole[0]["health"] = {"recoveryAction": action}
    new = path.with_suffix(".new")
    new.write_text(yaml.safe_dump(content), "utf-8")
    new.replace(path)
    return str(whole[0]["pci"])


def _follow(out: Any, node: EmbeddedNode) -> bool:
    started = time.monotonic()
    for stage, text in _stages(node, started + SECONDS):
        print_text(out, f"{time.monotonic() - started:5.1f} s  {stage:<16} {text}", indent=2)
        if stage in (Stage.RETURNED, Stage.ESCALATED):
            return stage is Stage.RETURNED
    return False


def _stages(node: EmbeddedNode, deadline: float) -> Iterator[tuple[Stage, str]]:
    """Yield each stage once, as soon as the agent logs it, with its meaning."""
    seen: set[Stage] = set()
    while time.monotonic() < deadline:
        node.agent.check()
        for match in _STEP.finditer(node.agent.log.read_text(errors="replace")):
            stage = Stage(match["stage"])
            if stage not in seen:
                seen.add(stage)
                yield stage, _MEANS.get(stage, match["why"] or "")
        time.sleep(0.05)
