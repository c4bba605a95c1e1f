"""As crash_points, for claims of shared devices: modes, time slices and daemons that are left count too.

    python -m tests.node.support.sharing_crash_points [STRIDE [CALL ...]]

In `first`, a claim is prepared on a device without other holders; in `joining`, the device has another holder, which
must keep its daemon and its time slice through every kill. In `leaving`, the claim is unprepared while the other holder
stays; in `last`, it is the last holder. The claim has a GPU under MPS with memory limits, and one with time slices. The
other claim belongs to the same pod, and to a second one.
"""

from pathlib import Path

from dra_driver.base.wire import MpsSettings
from dra_driver.node.prepare.repair import Reaper
from tests.support.plugin.killing import Trace, expect, print_report, traced_call
from tests.support.plugin.mig_parts import OTHER, WHOLE
from tests.support.plugin.parts import DRIVER
from tests.support.plugin.sharing_parts import SharingRig, replica, time_slicing

CALLS = ("first", "joining", "leaving", "last", "repeat")
WITH_OTHER = ("joining", "leaving")
PREPARED = ("leaving", "last", "repeat")


def rig_at(root: Path) -> SharingRig:
    """One claim has a share of a GPU under MPS, and a GPU of its own with an interval."""
    rig = SharingRig(root, MpsSettings(50), is_hard=True)
    pods = tuple(rig.pod(number) for number in (1, 2))
    rig.allocate("u1", replica(0), OTHER, configs=(time_slicing("Long", requests=("own",)),), pods=pods[:1])
    results = rig.api.claims["ns", "claim-u1"]["status"]["allocation"]["devices"]["results"]
    results[1]["request"] = "own"
    rig.allocate("other", replica(1), pods=pods)
    return rig


def set_up(root: Path, what: str) -> None:
    rig = rig_at(root)
    if what in PREPARED:
        rig.prepare("u1")
    if what in WITH_OTHER:
        rig.prepare("other")
    rig.preparer.close()


def call(root: Path, what: str, trace: Trace) -> None:
    rig = rig_at(root)
    traced_call(rig, "u1", trace, is_unprepare=what in ("leaving", "last"))
    rig.preparer.close()


def check(root: Path, what: str) -> None:
    """Check the next agent, which repairs and reaps: the effects are those that the remaining claims need."""
    rig = rig_at(root)
    Reaper(rig.repair, rig.store, driver=DRIVER).reap()
    check_effects(rig, what)
    finish(rig, what)


def check_effects(rig: SharingRig, what: str) -> None:
    states = rig.states()
    expect(set(states.values()) - {"prepared"}, set())
    holders = sorted(states)
    expect(rig.effects(), {**({WHOLE: holders} if holders else {}), **({OTHER: ["u1"]} if "u1" in holders else {})})
    expect(rig.compute_modes()[0], "EXCLUSIVE_PROCESS" if holders else "DEFAULT")
    expect(list(rig.supervisor.daemons()), [WHOLE] if holders else [])
    expect(rig.intervals(), ("Default", "Long" if "u1" in holders else "Default"))
    first, second = 20 * len(holders), 20 * ("other" in holders)
    limits = {number: limit for number, limit in ((1, first), (2, second)) if limit}
    expect(rig.limits(), {WHOLE: limits} if limits else {})
    if what in WITH_OTHER:
        expect(states.get("other"), "prepared")


def check_next_call(root: Path, what: str) -> None:
    """Check an agent that has not repaired anything before the next call."""
    finish(rig_at(root), what)


def finish(rig: SharingRig, what: str) -> None:
    """Prepare again as the kubelet would, then unprepare: the effects of the other claim are left, and then none."""
    rig.prepare("u1")
    expect(rig.intervals(), ("Default", "Long"))
    rig.unprepare("u1")
    if what in WITH_OTHER:
        check_effects(rig, what)
        rig.unprepare("other")
    rig.repair.run()
    rig.assert_unshared()
    rig.preparer.close()


if __name__ == "__main__":
    print_report(CALLS, (check, check_next_call), set_up, call)
