"""Kills the binding of a GPU for a virtual machine, and its way back, after each change of a file or of a driver.

    python -m tests.passthrough.support.kill_points [STRIDE [CALL ...]]

A program of its own (test_kill starts it), since it forks. Prints one JSON object: the number of kills by call, and
what was found wrong.
"""

from pathlib import Path

from dra_driver.plugin.ledger.record import UNFINISHED
from tests.passthrough.support.bus import BEFORE, DURING, PASSED, PassingRig
from tests.support.plugin.killing import Trace, expect, print_report, traced_call

CALLS = ("prepare", "unprepare", "repeat")
PassingRig.patience_s = 60.0  # a busy machine is no fault


def set_up(root: Path, what: str) -> None:
    rig = rig_at(root)
    if what != "prepare":
        rig.prepare("u1")
    rig.ledger.close()


def rig_at(root: Path) -> PassingRig:
    rig = PassingRig(root)
    rig.allocate("u1", PASSED)
    return rig


def call(root: Path, what: str, trace: Trace) -> None:
    traced_call(rig_at(root), "u1", trace, is_unprepare=what == "unprepare")


def check_repaired(root: Path, what: str) -> None:
    """Be the next agent: what was half done is undone, what was prepared is as it was."""
    rig = rig_at(root)
    rig.repair.run()
    expect([r.uid for r in rig.ledger.records() if r.state in UNFINISHED], [])
    expect(rig.drivers(), DURING if rig.states() else BEFORE)
    rig.unprepare("u1")
    expect(rig.drivers(), BEFORE)
    expect(rig.overrides(), {"(null)"})
    rig.assert_empty()


def check_unprepared(root: Path, what: str) -> None:
    """Be an agent that does not repair first: the kubelet unprepares."""
    rig = rig_at(root)
    rig.unprepare("u1")
    expect(rig.drivers(), BEFORE)
    expect(rig.overrides(), {"(null)"})
    rig.assert_empty()


def check_prepared_again(root: Path, what: str) -> None:
    """Be an agent that does not repair first: the kubelet asks again."""
    rig = rig_at(root)
    rig.prepare("u1")
    expect(rig.drivers(), DURING)
    expect(rig.overrides(), {"(null)"})
    rig.unprepare("u1")
    expect(rig.drivers(), BEFORE)
    rig.assert_empty()


if __name__ == "__main__":
    print_report(CALLS, (check_repaired, check_unprepared, check_prepared_again), set_up, call)
