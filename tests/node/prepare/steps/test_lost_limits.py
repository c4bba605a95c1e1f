"""Limits that another program on the node removed or raised: set again if possible, and always reported."""

import json
from pathlib import Path

import pytest

from dra_driver.base.errors import HardwareError
from dra_driver.base.machine import Deadline
from dra_driver.base.wire import SharedDevice
from dra_driver.node.daemon import node_labels
from dra_driver.node.daemon.node_labels import LimitWatch
from dra_driver.node.prepare.steps.memory_limiter import MemoryLimiter, PodCgroups
from tests.support.plugin.mig_parts import WHOLE
from tests.support.plugin.sharing_parts import POD, SharingRig, replica

GIB = 1 << 30


@pytest.fixture
def rig(tmp_path: Path):
    rig = SharingRig(tmp_path, is_hard=True)
    rig.hardware.memory_limit = lambda device, cgroup: rig._limits().get(f"{device.name} {cgroup}")
    rig.allocate("u1", replica(0), pods=(rig.pod(1),))
    rig.prepare("u1")
    yield rig
    rig.close()


def limiter(rig: SharingRig) -> MemoryLimiter:
    cgroups = PodCgroups(rig.root / "cgroup")
    return MemoryLimiter(rig.hardware, rig.ledger, rig.locks, cgroups, boot_id=rig.boot_id)


def recheck(rig: SharingRig) -> list[tuple[str, str, int, str]]:
    lost = limiter(rig).recheck(Deadline.after(5))
    return [(one.device, one.pod, one.limit // GIB, one.problem) for one in lost]


def set_to(rig: SharingRig, limit: int | None) -> None:
    rig._limit_memory(SharedDevice(WHOLE, "", 0), str(rig.cgroup(1)), limit, 1.0)


def test_limits_that_hold_are_left_alone(rig: SharingRig) -> None:
    assert recheck(rig) == []
    set_to(rig, 5 * GIB)  # by an administrator who lowers the limit
    assert (recheck(rig), rig.limits()) == ([], {WHOLE: {1: 5}})


@pytest.mark.parametrize("found", [None, 40 * GIB], ids=["removed", "raised"])
def test_a_limit_that_was_removed_or_raised_is_set_again_and_reported(rig: SharingRig, found: int | None) -> None:
    set_to(rig, found)
    assert recheck(rig) == [(WHOLE, POD.format(1), 20, "")]
    assert rig.limits() == {WHOLE: {1: 20}}
    assert recheck(rig) == []


def test_the_limit_that_is_set_again_is_the_sum_of_the_pods_claims(rig: SharingRig) -> None:
    rig.allocate("u2", replica(1), pods=(rig.pod(1), rig.pod(2)))
    rig.prepare("u2")
    (rig.root / "limits.json").write_text(json.dumps({}))
    assert sorted(recheck(rig)) == [(WHOLE, POD.format(1), 40, ""), (WHOLE, POD.format(2), 20, "")]
    assert rig.limits() == {WHOLE: {1: 40, 2: 20}}


def test_a_limit_that_cannot_be_set_again_is_reported_with_the_reason(rig: SharingRig) -> None:
    def refuse(*_: object) -> None:
        raise HardwareError("no-permission", "a tree that is read-only")

    set_to(rig, None)
    rig.hardware.limit_memory = refuse
    ((_, _, _, problem),) = recheck(rig)
    assert "read-only" in problem


def test_no_limit_is_set_again_for_a_pod_or_a_claim_that_has_ended(rig: SharingRig) -> None:
    set_to(rig, None)
    rig.cgroup(1).rmdir()
    assert recheck(rig) == []
    rig.pod(1)
    rig.unprepare("u1")
    assert (recheck(rig), rig.limits()) == ([], {})


def test_after_a_reboot_no_limit_counts_as_lost_before_the_claim_is_prepared_again(rig: SharingRig) -> None:
    set_to(rig, None)
    rig.reboot()
    rig.hardware.memory_limit = lambda *_: None
    assert recheck(rig) == []


class Api:
    """Records the Events that are created."""

    def __init__(self) -> None:
        self.events: list[dict] = []

    def request(self, _method: str, _path: str, *, body: dict) -> None:
        self.events.append(body)


def test_the_pod_gets_an_event_and_the_metrics_a_problem_for_ten_minutes(rig: SharingRig) -> None:
    api, now = Api(), [0.0]
    watch = LimitWatch(limiter(rig), api, node="node-1", driver="gpu.amd.com", clock=lambda: now[0])  # type: ignore[arg-type]
    assert (watch.check(), watch.problems) == ((), ())
    set_to(rig, None)
    assert len(watch.check()) == 1
    (event,) = api.events
    assert (event["reason"], event["involvedObject"]["name"]) == (node_labels.REASON, f"pod-{POD.format(1)}")
    assert "20480 MiB" in event["message"]
    assert "set again" in event["message"]
    assert [(one.code, one.subject) for one in watch.problems] == [("sharing.limit-lost", POD.format(1))]
    now[0] += node_labels.SHOWN_SECONDS
    assert (watch.check(), watch.problems) == ((), ())
