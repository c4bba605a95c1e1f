"""As crash_points, for claims that keep to compute units of a shared GPU: no unit may go to two of them or be lost.

    python -m tests.node.support.units_crash_points [STRIDE [CALL ...]]

In `choosing`, a claim is prepared beside another one; in `leaving`, it is unprepared; in `repeat`, it is prepared once
more; in `returning`, it is prepared again after a reboot and must have the units that it had before.
"""

from pathlib import Path

from tests.node.support.units_rig import UnitsRig
from tests.support.plugin.killing import Trace, expect, print_report, traced_call
from tests.support.plugin.sharing_parts import replica

CALLS = ("choosing", "leaving", "repeat", "returning")
UnitsRig.patience_s = 60.0  # a busy machine is no fault
OTHER, FIRST, SECOND = "0:0-7", "0:8-11", "0:12-17"


def rig_at(root: Path) -> UnitsRig:
    rig = UnitsRig(root)
    for index, (uid, count) in enumerate((("other", 8), ("u1", 4), ("next", 6), ("all", 20))):
        rig.ask(uid, replica(index), count)
    return rig


def set_up(root: Path, what: str) -> None:
    rig = rig_at(root)
    rig.prepare("other")
    if what != "choosing":
        rig.prepare("u1")
    rig.ledger.close()


def call(root: Path, what: str, trace: Trace) -> None:
    rig = rig_at(root)
    if what == "returning":
        rig.reboot()
    traced_call(rig, "u1", trace, is_unprepare=what == "leaving")


def check(root: Path, what: str) -> None:
    """Check the next agent, which repairs, and prepares another claim before this one is prepared again."""
    rig = rig_after(root, what)
    rig.repair.run()
    rig.repair.refresh_cdi()
    held = rig.units()
    expect(set(rig.states().values()) - {"prepared"}, set())
    expect(set(held) - {"other", "u1"}, set())
    if what in ("repeat", "returning"):
        expect(sorted(held["u1"]), list(range(8, 12)))
    rig.prepare("next")
    expect(rig.masks()["next"], SECOND if "u1" in rig.units() else "0:8-13")
    rig.prepare("u1")
    finish(rig, "next")


def check_next_call(root: Path, what: str) -> None:
    """Check an agent that has not repaired anything before the next call."""
    rig = rig_after(root, what)
    rig.prepare("u1")
    expect(rig.masks()["u1"], FIRST)
    finish(rig)


def check_another_claim_first(root: Path, what: str) -> None:
    """Check an agent that has not repaired anything before it prepares another claim."""
    rig = rig_after(root, what)
    rig.prepare("next")
    rig.prepare("u1")
    finish(rig, "next")


def rig_after(root: Path, what: str) -> UnitsRig:
    rig = rig_at(root)
    if what == "returning":
        rig.reboot()
    return rig


def finish(rig: UnitsRig, *more: str) -> None:
    """Check that containers were given what the ledger records, end all claims, and prepare all units of the GPU."""
    if rig.masks().get("other") is not None:  # after a reboot its file is written when the kubelet asks
        expect(rig.masks()["other"], OTHER)
    units = rig.units()
    expect(sum(map(len, units.values())), len(set().union(*units.values())))
    expect({uid: spread(mask) for uid, mask in rig.masks().items()}, {uid: units[uid] for uid in rig.masks()})
    for uid in ("u1", "other", *more):
        rig.unprepare(uid)
    rig.prepare("all")
    expect(rig.masks(), {"all": "0:0-19"})
    rig.unprepare("all")
    rig.repair.run()
    rig.assert_unshared()


def spread(mask: str) -> set[int]:
    """Return the units that the value of the variable names."""
    parts = [part.split("-") for part in mask.partition(":")[2].split(",")]
    return {unit for part in parts for unit in range(int(part[0]), int(part[-1]) + 1)}


if __name__ == "__main__":
    print_report(CALLS, (check, check_next_call, check_another_claim_first), set_up, call)
