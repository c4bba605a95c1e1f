"""Kills the agent after each change of a file or of a driver while it binds a GPU for a virtual machine or returns it.

    python -m tests.node.passthrough.support.crash_points [STRIDE [MACHINE-CALL ...]]

A program of its own (test_kill starts it), because it forks. Prints one JSON object: the number of kills by call, and
what was found wrong.
"""

from pathlib import Path

from dra_driver.node.ledger.record import UNFINISHED
from tests.node.passthrough.support.bus import AUDIO, BEFORE, DURING, GPU, OTHER, PASSED, TYPE_C, PassthroughRig
from tests.support.plugin.killing import Trace, expect, print_report, traced_call

CALLS = ("nvidia-repeat", "radeon-prepare", "radeon-unprepare", "function-prepare", "function-unprepare")
PassthroughRig.patience_s = 60.0  # a busy machine is no fault


RADEON = {GPU: "amdgpu", AUDIO: "snd_hda_intel", TYPE_C: ""}
DRIVERS = {
    "nvidia": (BEFORE, DURING),
    "radeon": ({**RADEON, OTHER: "amdgpu"}, {**dict.fromkeys(RADEON, "vfio-pci"), OTHER: "amdgpu"}),
    "function": ({GPU: "xe", OTHER: "xe"}, {GPU: "xe-vfio-pci", OTHER: "xe"}),
}


def machine_of(what: str) -> str:
    return what.partition("-")[0]


def before(what: str) -> dict[str, str]:
    return DRIVERS[machine_of(what)][0]


def during(what: str) -> dict[str, str]:
    return DRIVERS[machine_of(what)][1]


def set_up(root: Path, what: str) -> None:
    rig = rig_at(root, what)
    if not what.endswith("-prepare"):
        rig.prepare("u1")
    rig.ledger.close()


def rig_at(root: Path, what: str) -> PassthroughRig:
    rig = PassthroughRig(root, machine_of(what))
    rig.allocate("u1", PASSED)
    return rig


def call(root: Path, what: str, trace: Trace) -> None:
    traced_call(rig_at(root, what), "u1", trace, is_unprepare=what.endswith("-unprepare"))


def check_repaired(root: Path, what: str) -> None:
    """Check that the next agent undoes what was half done, and leaves what was prepared as it was."""
    rig = rig_at(root, what)
    rig.repair.run()
    expect([r.uid for r in rig.ledger.records() if r.state in UNFINISHED], [])
    expect(rig.drivers(), during(what) if rig.states() else before(what))
    rig.unprepare("u1")
    expect(rig.drivers(), before(what))
    expect(rig.overrides(), {"(null)"})
    rig.assert_empty()


def check_unprepared(root: Path, what: str) -> None:
    """Check a call of Unprepare to an agent that has not repaired anything before."""
    rig = rig_at(root, what)
    rig.unprepare("u1")
    expect(rig.drivers(), before(what))
    expect(rig.overrides(), {"(null)"})
    rig.assert_empty()


def check_prepared_again(root: Path, what: str) -> None:
    """Check a repeated call of Prepare to an agent that has not repaired anything before."""
    rig = rig_at(root, what)
    rig.prepare("u1")
    expect(rig.drivers(), during(what))
    expect(rig.overrides(), {"(null)"})
    rig.unprepare("u1")
    expect(rig.drivers(), before(what))
    rig.assert_empty()


if __name__ == "__main__":
    print_report(CALLS, (check_repaired, check_unprepared, check_prepared_again), set_up, call)
