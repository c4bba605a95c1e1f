"""As kill_points, for claims of MIG partitions: what is left on the (simulated) hardware counts too.

    python -m tests.plugin.support.mig_kill_points STRIDE [CALL ...]

An administrator's partition on the same GPU, and a claim of ours beside it, must outlive every kill.
"""

import json
import sys
from pathlib import Path
from typing import Any

from tests.support.plugin.kill_points import expect, kill_everywhere, killing_at
from tests.support.plugin.mig_parts import OTHER, MigRig, small

CALLS = ("prepare", "unprepare", "repeat", "reallocate", "whole")
MINE, MOVED = [small(3), small(2, OTHER)], [small(5)]
BYSTANDER = (0, "1g.10gb", 1)


def set_up(root: Path, *, is_prepared: bool) -> None:
    rig = MigRig(root)
    rig.now_prepare("bystander", small(1))
    if is_prepared:
        rig.now_prepare("u1", *MINE)
    rig.ledger.close()


def call(root: Path, what: str, line: int) -> None:
    rig = MigRig(root)
    rig.allocate("u1", *{"reallocate": MOVED, "whole": [OTHER]}.get(what, MINE))
    sys.settrace(killing_at(line))
    if what == "unprepare":
        rig.unprepare("u1")
    else:
        rig.prepare("u1")
    sys.settrace(None)


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


def main() -> None:
    stride, calls = int(sys.argv[1]), sys.argv[2:] or CALLS
    report: dict[str, Any] = {"kills": {}, "wrong": []}
    for what in calls:
        for checking in (check, check_next_call):
            kills, wrong = kill_everywhere(what, checking, stride, preparing=set_up, calling=call)
            report["kills"][f"{what}/{checking.__name__}"] = kills
            report["wrong"] += wrong
    print(json.dumps(report))


if __name__ == "__main__":
    main()
