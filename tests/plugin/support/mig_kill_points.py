"""As kill_points, for claims of MIG partitions: what is left on the (simulated) hardware counts too.

    python -m tests.plugin.support.mig_kill_points [STRIDE [CALL ...]]

An administrator's partition on the same GPU, and a claim of ours beside it, must outlive every kill.
"""

from pathlib import Path

from tests.support.plugin.killing import Trace, expect, print_report, traced_call
from tests.support.plugin.mig_parts import OTHER, MigRig, small

CALLS = ("prepare", "unprepare", "repeat", "reallocate", "whole")
MINE, MOVED = [small(3), small(2, OTHER)], [small(5)]
BYSTANDER = (0, "1g.10gb", 1)


def set_up(root: Path, what: str) -> None:
    rig = MigRig(root)
    rig.now_prepare("bystander", small(1))
    if what != "prepare":
        rig.now_prepare("u1", *MINE)
    rig.ledger.close()


def call(root: Path, what: str, trace: Trace) -> None:
    rig = MigRig(root)
    rig.allocate("u1", *{"reallocate": MOVED, "whole": [OTHER]}.get(what, MINE))
    traced_call(rig, "u1", trace, is_unprepare=what == "unprepare")


def check(root: Path, what: str) -> None:
    """Be the next agent: repair, look at the hardware, and go on."""
    rig = MigRig(root)
    rig.repair.run()
    rig.look()
    expect([len(rig.owners.of_ledger().foreign(rig.gpu(i))) for i in (0, 1)], [0, 0])
    finish(rig)


def check_next_call(root: Path, what: str) -> None:
    """Be an agent that does not repair first."""
    finish(MigRig(root))


def finish(rig: MigRig) -> None:
    """Prepare as the kubelet would again, then unprepare: nothing is left but the bystander, then nothing at all."""
    expect(BYSTANDER in rig.cuts(), True)
    rig.now_prepare("u1", *MINE)
    expect(rig.cuts(), [BYSTANDER, (0, "1g.10gb", 3), (1, "1g.10gb", 2)])
    rig.unprepare("u1")
    expect((rig.cuts(), rig.modes()), ([BYSTANDER], [True, False]))
    rig.unprepare("bystander")
    rig.repair.run()
    rig.assert_untouched()


if __name__ == "__main__":
    print_report(CALLS, (check, check_next_call), set_up, call)
