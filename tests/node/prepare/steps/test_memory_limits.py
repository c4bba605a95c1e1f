"""Memory limits within Prepare and Unprepare: each pod may have what its claims have of a GPU, and no more."""

import re
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dra_driver.base.errors import ApiError, HardwareError, Retry, SharingError
from dra_driver.node.ledger.database import Database
from dra_driver.node.prepare.repair import Reaper
from dra_driver.node.prepare.steps import memory_limiter
from dra_driver.node.prepare.steps.memory_limiter import PodCgroups
from tests.support.plugin.mig_parts import OTHER, WHOLE
from tests.support.plugin.parts import DRIVER
from tests.support.plugin.sharing_parts import POD, SharingRig, replica
from tests.support.waiting import until

SHARE = "ab12cd34-0000-4000-8000-00000000000{}"


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_limiter, "CHECK_SECONDS", 0.02)


@pytest.fixture
def rig(tmp_path: Path):
    rig = SharingRig(tmp_path, is_hard=True)
    yield rig
    rig.close()


def reserve(rig: SharingRig, uid: str, *numbers: int) -> None:
    """Reserve a claim for more pods, as the scheduler does."""
    wire: dict[str, Any] = rig.api.claims["ns", f"claim-{uid}"]
    wire["status"]["reservedFor"] = [{"resource": "pods", "name": "p", "uid": POD.format(n)} for n in numbers]


def test_a_pod_may_have_what_all_its_claims_have_of_a_gpu(rig: SharingRig) -> None:
    one, two = rig.pod(1), rig.pod(2)
    rig.allocate("u1", replica(0), pods=(one,))
    rig.allocate("u2", replica(1), pods=(one, two))
    rig.allocate_share("u3", SHARE.format(1), SHARE.format(2), memory="6Gi", pods=(two,))
    for uid in ("u1", "u2", "u3"):
        rig.prepare(uid)
    assert rig.limits() == {WHOLE: {1: 40, 2: 20}, OTHER: {2: 12}}
    rig.prepare("u2")
    rig.unprepare("u2")
    assert rig.limits() == {WHOLE: {1: 20}, OTHER: {2: 12}}
    for uid in ("u1", "u3"):
        rig.unprepare(uid)
    rig.assert_unshared()


def test_admin_access_and_shares_that_are_not_hard_set_no_limit(tmp_path: Path, rig: SharingRig) -> None:
    rig.allocate("u1", replica(0), pods=(rig.pod(1),))
    rig.api.claims["ns", "claim-u1"]["status"]["allocation"]["devices"]["results"][0]["adminAccess"] = True
    rig.prepare("u1")
    assert rig.limits() == {}
    rig.unprepare("u1")
    soft = SharingRig(tmp_path / "soft")
    soft.allocate("u2", replica(0), pods=(soft.pod(1),))
    soft.prepare("u2")
    assert soft.limits() == {}
    soft.close()


def test_without_a_cgroup_to_limit_a_claim_is_refused_and_nothing_is_left(rig: SharingRig) -> None:
    rig.allocate("u1", replica(0), pods=(POD.format(7),))
    with pytest.raises(SharingError, match=POD.format(7)) as refused:
        rig.prepare("u1")
    assert refused.value.code == "sharing.no-pod-cgroup"
    assert "cgroups-per-qos" in refused.value.hint
    rig.assert_unshared()


def test_a_limit_that_the_driver_refuses_fails_the_claim_and_leaves_nothing(rig: SharingRig) -> None:
    def refuse(device: object, cgroup: str, limit: int | None, deadline_s: float) -> None:
        if limit is not None:
            raise HardwareError("memory-limit-unsupported", "no")

    rig.hardware.limit_memory = refuse
    rig.allocate("u1", replica(0), pods=(rig.pod(1),))
    with pytest.raises(HardwareError):
        rig.prepare("u1")
    rig.assert_unshared()


def test_a_claim_can_be_unprepared_after_the_driver_lost_support_for_limits(rig: SharingRig) -> None:
    rig.allocate("u1", replica(0), pods=(rig.pod(1),))
    rig.prepare("u1")

    def lost(*_: object) -> None:
        raise HardwareError("memory-limit-unsupported", "an older driver")

    rig.hardware.limit_memory = lost
    rig.unprepare("u1")
    rig.assert_empty()


def test_a_claim_can_be_unprepared_after_the_limit_has_gone_with_its_pod(rig: SharingRig) -> None:
    rig.allocate("u1", replica(0), pods=(rig.pod(1),))
    rig.prepare("u1")
    rig.cgroup(1).rmdir()
    (rig.root / "limits.json").unlink()
    rig.unprepare("u1")
    rig.assert_unshared()


def test_a_claim_keeps_its_limit_when_the_configuration_changes(rig: SharingRig) -> None:
    rig.allocate("u1", replica(0), pods=(rig.pod(1),))
    rig.prepare("u1")
    rig.is_hard = False
    rig.reboot()
    (rig.root / "limits.json").unlink()
    rig.prepare("u1")
    assert rig.limits() == {WHOLE: {1: 20}}
    rig.unprepare("u1")
    rig.assert_unshared()


def test_a_pod_that_joins_a_prepared_claim_is_limited_too(rig: SharingRig) -> None:
    rig.allocate("u1", replica(0), pods=(rig.pod(1),))
    rig.prepare("u1")
    reserve(rig, "u1", 1, 2)
    rig.pod(3)  # a pod of another claim
    rig.pod(2)
    until(lambda: rig.limits() == {WHOLE: {1: 20, 2: 20}})
    rig.preparer.close()
    rig.preparer._late_pods.check()
    asked = rig.api.requests["get"]
    assert rig.preparer._late_pods.check()
    assert rig.api.requests["get"] == asked, "no pod is new, so the API server is not asked"
    rig.unprepare("u1")
    rig.assert_unshared()


def test_a_pod_that_starts_after_prepare_is_limited_when_it_starts(rig: SharingRig) -> None:
    rig.allocate("u1", replica(0), pods=(rig.pod(1), POD.format(2)))
    rig.prepare("u1")
    assert rig.limits() == {WHOLE: {1: 20}}
    rig.pod(2)
    until(lambda: rig.limits() == {WHOLE: {1: 20, 2: 20}})
    rig.unprepare("u1")
    rig.assert_unshared()


def test_two_agents_that_find_the_same_pod_count_it_once(rig: SharingRig) -> None:
    rig.allocate("u1", replica(0), pods=(rig.pod(1),))
    rig.prepare("u1")
    two = rig.pod(2)
    for _ in range(2):
        rig.preparer._late_pods._limit("u1", (two,))
    rig.allocate("u2", replica(1), pods=(two,))
    rig.prepare("u2")
    assert rig.limits() == {WHOLE: {1: 20, 2: 40}}
    for uid in ("u1", "u2"):
        rig.unprepare(uid)
    rig.assert_unshared()


@pytest.mark.parametrize(
    "fault",
    [
        ApiError("unavailable", "not now", status=503),
        ApiError("not-served", "a proxy's page", status=404, retry=Retry.NOW),
    ],
    ids=["unavailable", "not served"],
)
def test_a_restarted_agent_limits_pods_that_started_meanwhile(rig: SharingRig, fault: ApiError) -> None:
    rig.allocate("u1", replica(0), pods=(rig.pod(1),))
    rig.prepare("u1")
    rig.preparer.close()
    rig.restart()
    reserve(rig, "u1", 1, 2)
    rig.pod(2)
    rig.api.faults.append(fault)
    rig.repair.run()
    until(lambda: rig.limits() == {WHOLE: {1: 20, 2: 20}})


def test_pods_are_watched_only_while_something_is_limited(rig: SharingRig) -> None:
    rig.repair.run()
    assert rig.preparer._late_pods.is_watching is False
    rig.allocate("u1", replica(0), pods=(rig.pod(1),))
    rig.prepare("u1")
    assert rig.preparer._late_pods.is_watching is True
    rig.unprepare("u1")
    rig.pod(2)
    until(lambda: rig.preparer._late_pods.is_watching is False)


STEPS = st.lists(
    st.tuples(st.sampled_from(["prepare", "unprepare", "restart", "reap"]), st.integers(0, 3)), max_size=12
)


@settings(
    max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None
)
@given(STEPS)
def test_a_limit_is_always_the_sum_of_what_is_held(tmp_path_factory, steps) -> None:
    rig = SharingRig(tmp_path_factory.mktemp("rig"), is_hard=True)
    pods = [(1,), (1, 2), (2,), (3,)]
    for index, numbers in enumerate(pods):
        rig.allocate(f"u{index}", replica(index), pods=tuple(rig.pod(number) for number in numbers))
    held: set[int] = set()
    for what, index in steps:
        if what == "prepare":
            rig.prepare(f"u{index}")
            held.add(index)
        elif what == "unprepare":
            rig.unprepare(f"u{index}")
            held.discard(index)
        elif what == "restart":
            rig.preparer.close()
            rig.restart()
        else:
            Reaper(rig.repair, rig.store, driver=DRIVER).reap()
        sums = {pod: 20 * sum(pod in pods[one] for one in held) for pod in (1, 2, 3)}
        expected = {pod: limit for pod, limit in sums.items() if limit}
        assert rig.limits() == ({WHOLE: expected} if expected else {})
    rig.close()


@pytest.mark.parametrize(
    "folder",
    [
        "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{_}.slice",
        "kubepods.slice/kubepods-pod{_}.slice",
        "kubepods/besteffort/pod{}",
        "kubepods/pod{}",
        "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod{_}.slice",
        "cluster/node/kubepods/burstable/pod{}",
    ],
)
def test_a_pods_cgroup_is_found_with_either_cgroup_driver(tmp_path: Path, folder: str) -> None:
    uid = POD.format(1)
    path = tmp_path / folder.replace("{_}", uid.replace("-", "_")).replace("{}", uid)
    (path / "cri-containerd-0123.scope").mkdir(parents=True)
    (tmp_path / "system.slice/containerd.service").mkdir(parents=True)
    cgroups = PodCgroups(tmp_path)
    assert cgroups.all() == {uid: str(path)}
    assert cgroups.of([uid, POD.format(2)]) == {uid: str(path)}
    assert PodCgroups(tmp_path / "nowhere").all() == {}


def test_neither_prepare_nor_unprepare_reads_every_claim(rig: SharingRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every query that a call makes finds its rows by an index, according to SQLite itself."""
    for number in range(4):
        rig.allocate(f"before{number}", replica(number), pods=(rig.pod(number),))
        rig.prepare(f"before{number}")
    rig.allocate_share("u1", SHARE.format(1), memory="6Gi", pods=(rig.pod(1),))
    here, queries = threading.current_thread(), list[str]()
    read = Database.read

    def noted(self: Database, sql: str, *given: Any, **more: Any) -> list[sqlite3.Row]:
        if threading.current_thread() is here:
            queries.append(sql)
        return read(self, sql, *given, **more)

    monkeypatch.setattr(Database, "read", noted)
    rig.prepare("u1")
    rig.unprepare("u1")
    monkeypatch.undo()
    with closing(sqlite3.connect(rig.data / "ledger.db")) as ledger:
        plans = {q: [row[3] for row in ledger.execute(f"EXPLAIN QUERY PLAN {q}", [""] * q.count("?"))] for q in queries}
    assert any("claim_uid FROM holds" in query for query in plans)
    scans = {query: plan for query, plan in plans.items() if re.search(r"SCAN (main\.)?(claims|holds)", " ".join(plan))}
    assert scans == {}
