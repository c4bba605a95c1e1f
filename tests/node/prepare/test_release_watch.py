"""Containers that outlive the Unprepare of their claim: which claims wait for them, and for how long.

Processes are stand-ins here, folders as in /proc; real ones are in the cluster lane (test_robustness).
"""

import errno
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from dra_driver.base.errors import ClaimError
from dra_driver.node.ledger import unreleased
from dra_driver.node.ledger.record import ClaimState
from dra_driver.node.prepare import node_users, release_watch
from dra_driver.node.prepare.node_users import NodeLook, pods_with_processes
from tests.node.support.ledger_file import sql
from tests.node.support.running_pods import CONTAINER, OLD, OTHER, Machine
from tests.support.plugin.parts import Rig, claim_wire, in_thread, result
from tests.support.waiting import until

SHARE, OTHER_SHARE = "11111111-2222-4333-8444-555555555555", "22222222-2222-4333-8444-555555555555"


@pytest.fixture
def machine(rig: Rig) -> Machine:
    return Machine(rig.root)


@pytest.fixture
def left(rig: Rig, machine: Machine) -> Machine:
    """The claim "old" was unprepared while a container of its pod runs on as process 7; "new" requests its device."""
    machine.run(7, "container", CONTAINER, OLD)
    rig.api.put(claim_wire("old", result("gpu-0"), pods=(OLD,)))
    rig.prepare("old")
    rig.unprepare("old")
    rig.allocate("new", "gpu-0")
    return machine


def test_the_next_claim_waits_until_the_containers_of_the_last_one_have_ended(rig: Rig, left: Machine) -> None:
    thread, outcome = in_thread(rig.prepare, "new")
    thread.join(0.6)
    assert thread.is_alive()
    assert rig.states() == {}
    left.end(7)
    thread.join(60)
    assert outcome[0][0].device == "gpu-0"
    assert rig.states() == {"new": "prepared"}


@pytest.mark.parametrize("cgroup", ["/", f"/kubepods/pod{OLD}/8b1d"])
def test_a_process_that_is_ending_may_still_have_its_files_open(rig: Rig, left: Machine, cgroup: str) -> None:
    left.begin_to_end(7, cgroup=cgroup)
    with pytest.raises(ClaimError, match=f"containers of pod {OLD}"):
        rig.prepare("new", 0.6)
    left.begin_to_end(7, state="Z", cgroup=cgroup)  # it has ended, and nobody has asked how
    assert rig.prepare("new", 60)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[NodeLook]:
    """All looks at the processes so far."""
    found: list[NodeLook] = []
    look_at = release_watch.look_at_nodes
    monkeypatch.setattr(release_watch, "look_at_nodes", lambda *a: found.append(look_at(*a)) or found[-1])
    return found


def test_a_process_of_another_pod_that_begins_to_end_later_delays_no_claim(
    rig: Rig, machine: Machine, looks: list[NodeLook]
) -> None:
    machine.run(7, "container", CONTAINER, OLD)
    machine.run(8, "another", CONTAINER, OTHER)
    rig.api.put(claim_wire("old", result("gpu-0"), pods=(OLD,)))
    rig.prepare("old")
    rig.unprepare("old")
    until(lambda: looks)
    machine.begin_to_end(8, cgroup=f"/kubepods/pod{OTHER}/8b1d")
    machine.end(7)
    assert rig.prepare(rig.allocate("new", "gpu-0"), 60)


@pytest.mark.parametrize("ends", [True, False])
def test_a_process_that_was_ending_before_anybody_looked_may_be_of_a_pod_that_joined_unseen(
    rig: Rig, machine: Machine, monkeypatch: pytest.MonkeyPatch, *, ends: bool
) -> None:
    """Neither its files are listed any more nor its mounts, and nobody has seen that its pod had the claim."""
    machine.run(8, "another", CONTAINER, OTHER)
    machine.begin_to_end(8, cgroup=f"/kubepods/pod{OTHER}/8b1d")
    rig.api.put(claim_wire("old", result("gpu-0"), pods=(OLD,)))
    rig.prepare("old")
    rig.unprepare("old")
    with pytest.raises(ClaimError, match="gpu-0 by containers"):
        rig.prepare(rig.allocate("new", "gpu-0"), 0.6)
    if ends:
        machine.end(8)
    else:
        monkeypatch.setattr(unreleased, "BOUND_SECONDS", 0.0)
    assert rig.prepare("new", 60)


def test_a_call_whose_time_is_up_names_the_pod_and_its_claim(rig: Rig, left: Machine) -> None:
    with pytest.raises(ClaimError) as caught:
        rig.prepare("new", 0.5)
    assert caught.value.code == "claim.device-in-use"
    assert f"gpu-0 by containers of pod {OLD}, which used it through claim ns/claim-old (UID old)" in str(caught.value)


def test_other_devices_the_same_claim_and_admin_access_do_not_wait(rig: Rig, left: Machine) -> None:
    rig.allocate("elsewhere", "gpu-1")
    assert rig.prepare("elsewhere", 60)
    rig.api.put(claim_wire("admin", result("gpu-0", adminAccess=True)))
    assert rig.prepare("admin", 60)
    assert rig.prepare("old", 60), "the same claim again, for the same pod"


def test_a_container_that_cannot_be_killed_does_not_keep_the_device_for_ever(
    rig: Rig, machine: Machine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unreleased, "BOUND_SECONDS", 0.5)
    machine.run(7, "container", CONTAINER, OLD)
    rig.api.put(claim_wire("old", result("gpu-0"), pods=(OLD,)))
    rig.prepare("old")
    rig.unprepare("old")
    rig.allocate("new", "gpu-0")
    assert rig.prepare("new", 60)
    until(lambda: "device released although a pod that may use it still runs" in caplog.text)


def test_a_pod_whose_folder_the_kubelet_has_removed_delays_no_claim(
    rig: Rig, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[object] = []
    monkeypatch.setattr(release_watch, "pods_with_processes", lambda *a: looks.append(a) or frozenset({OLD}))
    shutil.rmtree(machine.pods / OLD)
    rig.api.put(claim_wire("old", result("gpu-0"), pods=(OLD,)))
    rig.prepare("old")
    rig.unprepare("old")
    rig.allocate("new", "gpu-0")
    assert rig.prepare("new", 60)
    assert not looks


@pytest.mark.parametrize("pods", [(OLD,), ()])
def test_a_claim_of_a_share_waits_for_no_other_share_and_a_claim_of_the_device_waits_for_all(
    rig: Rig, machine: Machine, pods: tuple[str, ...]
) -> None:
    machine.run(7, "container", CONTAINER, OLD)
    for uid, share_id in (("old", SHARE), ("older", OTHER_SHARE)):
        rig.api.put(claim_wire(uid, result("gpu-0", shareID=share_id), pods=(OLD,)))
        rig.prepare(uid)
        rig.unprepare(uid)
    rig.api.put(claim_wire("next", result("gpu-0", shareID=SHARE), pods=pods))
    assert rig.prepare("next", 0.0)
    rig.unprepare("next")
    with pytest.raises(
        ClaimError, match=f"gpu-0 by containers of pod {OLD}, which used it through claim ns/claim-old "
    ):
        rig.prepare(rig.allocate("new", "gpu-0"), 0.3)
    machine.end(7)
    assert rig.prepare("new", 60)


def test_a_pod_whose_containers_have_ended_delays_no_claim(rig: Rig, machine: Machine) -> None:
    (machine.pods / OLD).mkdir(exist_ok=True)  # the kubelet removes it later
    for number in range(5):
        rig.api.put(claim_wire(f"u{number}", result("gpu-0"), pods=(OLD,)))
        rig.prepare(f"u{number}")
        rig.unprepare(f"u{number}")
        assert rig.prepare(rig.allocate(f"next{number}", "gpu-0"), 0.9)  # sooner than holders are looked at again
        rig.unprepare(f"next{number}")
    until(lambda: not rig.ledger.unreleased.has_any())


def test_pods_that_share_a_claim_are_all_recorded(rig: Rig, machine: Machine) -> None:
    rig.api.put(claim_wire("u1", result("gpu-0"), pods=(OLD,)))
    rig.prepare("u1")
    rig.api.put(claim_wire("u1", result("gpu-0"), pods=(OTHER,)))
    rig.prepare("u1")
    rig.restart()
    record = rig.ledger.get("u1")
    assert record is not None
    assert record.allocation["pods"] == [OLD, OTHER]
    assert record.claim().pods == (OLD, OTHER)


def test_only_mounts_from_a_pods_folder_show_that_its_container_runs(machine: Machine) -> None:
    uids = {OLD, OTHER}
    assert pods_with_processes(uids, machine.proc) == frozenset()
    machine.run(7, "container", CONTAINER, OTHER)
    machine.run(8, "container", CONTAINER, OTHER)
    assert pods_with_processes(uids, machine.proc) == {OTHER}
    machine.end(7)
    assert pods_with_processes(uids, machine.proc) == {OTHER}
    (machine.proc / "8/mountinfo").write_text("")  # a zombie
    assert pods_with_processes(uids, machine.proc) == frozenset()


def test_a_volume_that_is_named_like_another_pods_folder_does_not_count_for_that_pod(machine: Machine) -> None:
    forged = CONTAINER.replace("/pods/{pod}/", f"/pods/{OTHER}/volumes/kubernetes.io~empty-dir/x/pods/{{pod}}/")
    machine.run(7, "container", forged, OLD)
    assert pods_with_processes({OLD}, machine.proc) == frozenset()
    assert pods_with_processes({OLD, OTHER}, machine.proc) == {OTHER}


def test_a_real_container_is_found_as_long_as_it_lives(tmp_path: Path) -> None:
    hosts = tmp_path / "pods" / OTHER / "etc-hosts"
    hosts.parent.mkdir(parents=True)
    hosts.write_text("127.0.0.1 localhost")
    script = f"mount --bind {hosts} /etc/hosts && echo up && exec sleep 60"
    container = subprocess.Popen(["unshare", "--mount", "sh", "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert container.stdout is not None
        if container.stdout.readline() != "up\n":
            pytest.skip("needs root and the right to mount")
        assert pods_with_processes({OLD, OTHER}) == {OTHER}
    finally:
        container.kill()
        assert pods_with_processes({OLD}) == frozenset()
        until(lambda: not pods_with_processes({OTHER}))  # a zombie by now
        container.wait(60)
        if container.stdout is not None:
            container.stdout.close()


def test_a_device_stays_unreleased_with_the_next_agent_even_if_this_one_died_in_unprepare(
    rig: Rig, machine: Machine
) -> None:
    machine.run(7, "container", CONTAINER, OLD)
    rig.api.put(claim_wire("old", result("gpu-0"), result("gpu-1"), pods=(OLD,)))
    rig.prepare("old")
    rig.ledger.set_state("old", ClaimState.UNPREPARING)
    rig.preparer.close()
    rig.restart()
    assert rig.repair.run() == 1
    assert rig.states() == {}
    assert not rig.ledger.is_empty(), "the folder must not go with the last agent"
    for device in ("gpu-0", "gpu-1"):
        with pytest.raises(ClaimError, match=f"containers of pod {OLD}"):
            rig.prepare(rig.allocate(f"new-{device}", device), 0.3)
    machine.end(7)
    assert rig.prepare("new-gpu-0")


def test_a_device_that_was_unreleased_in_another_boot_is_free(rig: Rig, left: Machine) -> None:
    rig.preparer.close()
    rig.reboot()
    assert rig.prepare("new", 60)


def test_the_device_of_a_claim_of_unknown_boot_stays_unreleased_and_no_other_row_is_removed(
    rig: Rig, left: Machine
) -> None:
    """A claim that was recovered after a lost ledger does not know its boot; its pods may well run in this one."""
    rig.api.put(claim_wire("found", result("gpu-1"), pods=(OLD,)))
    rig.prepare("found")
    sql(rig.ledger.path, "UPDATE claims SET boot_id = '' WHERE uid = 'found'")
    rig.unprepare("found")
    for device in ("gpu-0", "gpu-1"):
        with pytest.raises(ClaimError, match=f"containers of pod {OLD}"):
            rig.prepare(rig.allocate(f"next-{device}", device), 0.3)
    left.end(7)
    until(lambda: not rig.ledger.unreleased.has_any())
    assert rig.prepare("next-gpu-0")
    assert rig.prepare("next-gpu-1")


def test_the_device_of_a_claim_of_an_earlier_boot_is_free_and_no_row_of_this_boot_is_removed(
    rig: Rig, left: Machine
) -> None:
    rig.api.put(claim_wire("earlier", result("gpu-1"), pods=(OLD,)))
    rig.prepare("earlier")
    sql(rig.ledger.path, "UPDATE claims SET boot_id = 'an earlier one' WHERE uid = 'earlier'")
    rig.unprepare("earlier")
    assert rig.prepare(rig.allocate("next-gpu-1", "gpu-1"), 0.5)
    with pytest.raises(ClaimError, match=f"containers of pod {OLD}"):
        rig.prepare("new", 0.3)


def test_an_agent_that_sees_only_its_own_pod_keeps_devices_for_the_bound_and_says_so_once(
    rig: Rig, machine: Machine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.end(1)
    machine.run(1, "own", CONTAINER, OTHER)  # without hostPID, the first process is one of the agent's pod
    for uid in ("old", "older"):
        rig.api.put(claim_wire(uid, result("gpu-0" if uid == "old" else "gpu-1"), pods=(OLD,)))
        rig.prepare(uid)
        rig.unprepare(uid)
    rig.allocate("new", "gpu-0")
    with pytest.raises(ClaimError, match=f"containers of pod {OLD}"):
        rig.prepare("new", 0.6)
    monkeypatch.setattr(unreleased, "BOUND_SECONDS", 0.0)
    assert rig.prepare("new", 60)
    assert caplog.text.count("the agent may not see the processes of containers") == 1


@pytest.mark.parametrize(("number", "is_an_end"), [(2, True), (3, True), (22, True), (24, False), (13, False)])
def test_only_a_process_that_has_ended_counts_as_ended(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, number: int, is_an_end: bool
) -> None:
    def refuse(*_: object) -> tuple[str, bytes]:
        raise OSError(number, "refused")

    monkeypatch.setattr(node_users, "_view", refuse)
    if is_an_end:
        assert pods_with_processes({OLD}, machine.proc) == frozenset()
    else:
        with pytest.raises(OSError, match="refused"):
            pods_with_processes({OLD}, machine.proc)


def test_pods_whose_processes_cannot_be_looked_at_keep_the_device(
    rig: Rig, left: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> tuple[str, bytes]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(node_users, "_view", refuse)
    left.end(7)
    with pytest.raises(ClaimError, match=f"containers of pod {OLD}"):
        rig.prepare("new", 0.6)
    monkeypatch.undo()
    assert rig.prepare("new", 60)
