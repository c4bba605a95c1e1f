"""As crash_points, for claims of MIG partitions: what is left on the (simulated) hardware counts too.

    python -m tests.node.support.mig_crash_points [STRIDE [CALL ...]]

A claim of ours beside the one that is killed must outlive every kill. In `alone`, the claim that is undone has the only
partition of its GPU, so that it is not marked as being undone and its MIG mode ends with it.
"""

from pathlib import Path

from tests.support.plugin.killing import Trace, expect, print_report, traced_call
from tests.support.plugin.mig_parts import OTHER, MigRig, small

CALLS = ("prepare", "unprepare", "alone", "repeat", "reallocate", "whole")
UNPREPARES = ("unprepare", "alone")
MINE, MOVED = [small(3), small(2, OTHER)], [small(5)]
BYSTANDER = (0, "1g.10gb", 1)


def set_up(root: Path, what: str) -> None:
    rig = MigRig(root)
    rig.now_prepare("bystander", small(1))
    if what != "prepare":
        rig.now_prepare("u1", *claimed(what))
    rig.ledger.close()


def claimed(what: str) -> list[str]:
    return MINE[1:] if what == "alone" else MINE


def call(root: Path, what: str, trace: Trace) -> None:
    rig = MigRig(root)
    rig.allocate("u1", *{"reallocate": MOVED, "whole": [OTHER]}.get(what, claimed(what)))
    traced_call(rig, "u1", trace, is_unprepare=what in UNPREPARES)


def check(root: Path, what: str) -> None:
    """Check the next agent, which repairs and looks at the hardware before the kubelet calls."""
    rig = MigRig(root)
    rig.repair.run()
    rig.scan()
    expect([len(rig.owners.of_ledger().foreign(rig.gpu(i))) for i in (0, 1)], [0, 0])
    finish(rig, what)


def check_next_call(root: Path, what: str) -> None:
    """Check an agent that has not repaired anything before the next call."""
    finish(MigRig(root), what)


def check_same_call(root: Path, what: str) -> None:
    """Check an agent that the kubelet calls in the same way again."""
    rig = MigRig(root)
    if what in UNPREPARES:
        rig.unprepare("u1")
        expect(
            (rig.partitions_made(), rig.modes(), rig.states()), ([BYSTANDER], [True, False], {"bystander": "prepared"})
        )
    finish(rig, what)


def finish(rig: MigRig, what: str) -> None:
    """Prepare again as the kubelet would, then unprepare: only the bystander's partition is left, and then none."""
    expect(BYSTANDER in rig.partitions_made(), True)
    rig.now_prepare("u1", *claimed(what))
    expect(rig.partitions_made(), [BYSTANDER, (0, "1g.10gb", 3), (1, "1g.10gb", 2)][:: 2 if what == "alone" else 1])
    rig.unprepare("u1")
    expect((rig.partitions_made(), rig.modes()), ([BYSTANDER], [True, False]))
    rig.unprepare("bystander")
    rig.repair.run()
    rig.assert_untouched()


if __name__ == "__main__":
    print_report(CALLS, (check, check_next_call, check_same_call), set_up, call)
