"""Runs prepare and unprepare of a claim in child processes that kill themselves, then checks as the next agent.

    python -m tests.node.support.crash_points [STRIDE [CALL ...]]

Kills after each change of a file; with a stride, at one line in so many (1: at every line, which takes two minutes).
A program of its own (test_kill starts it), because it forks. Prints one JSON object: the number of kills by call, and
what was found wrong.
"""

from pathlib import Path

from dra_driver.node.ledger.record import UNFINISHED
from tests.support.plugin.killing import Trace, expect, print_report, traced_call
from tests.support.plugin.parts import Rig

CALLS = ("prepare", "unprepare", "repeat", "reallocate")


def set_up(root: Path, what: str) -> None:
    rig = rig_at(root)
    rig.prepare("bystander")
    if what != "prepare":
        rig.prepare("u1")
    rig.ledger.close()


def rig_at(root: Path) -> Rig:
    rig = Rig(root)
    rig.allocate("bystander", "gpu-3")
    rig.allocate("u1", "gpu-0", "mig-1")
    return rig


def call(root: Path, what: str, trace: Trace) -> None:
    rig = rig_at(root)
    if what == "reallocate":
        rig.allocate("u1", "gpu-1")
    traced_call(rig, "u1", trace, is_unprepare=what == "unprepare")


def check(root: Path, what: str) -> None:
    """Check the next agent, which repairs and writes CDI files again before the kubelet calls."""
    rig = rig_at(root)
    rig.repair.run()
    rig.repair.refresh_cdi()
    states = rig.states()
    expect(states.pop("bystander", ""), "prepared")
    expect(set(states.values()) - {"prepared"}, set())
    expect(sorted(rig.files()), sorted(rig.file_of(uid) for uid in (*states, "bystander")))
    expect({uid for _, uid in rig.holders()}, {*states, "bystander"})
    if what == "repeat":
        expect(states, {"u1": "prepared"})
    # What the kubelet does next: it asks again, and in the end it unprepares.
    devices = ["gpu-1"] if what == "reallocate" else ["gpu-0", "mig-1"]
    rig.allocate("u1", *devices)
    expect([d.device for d in rig.prepare("u1")], devices)
    expect(rig.holders(), {("gpu-3", "bystander"), *((d, "u1") for d in devices)})
    rig.unprepare("u1")
    expect(list(rig.files()), [rig.file_of("bystander")])
    rig.unprepare("bystander")
    rig.assert_empty()


def check_next_call(root: Path, what: str) -> None:
    """Check an agent that has not repaired anything before the next call."""
    rig = rig_at(root)
    if what == "unprepare":
        rig.unprepare("u1")
        expect(rig.states(), {"bystander": "prepared"})
    else:
        rig.prepare("u1")
        expect(rig.states(), {"bystander": "prepared", "u1": "prepared"})
    expect([r.uid for r in rig.ledger.records() if r.state in UNFINISHED], [])
    rig.unprepare("u1")
    rig.unprepare("bystander")
    rig.repair.run()
    rig.assert_empty()


if __name__ == "__main__":
    print_report(CALLS, (check, check_next_call), set_up, call)
