"""Prepare and unprepare without sockets: real ledger, locks and CDI files; API and hardware are stand-ins.

Left out: who waits for whom (test_holders), crashes (test_kill), broken disks (test_faults).
"""

import json
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from dra_driver.base import machine
from dra_driver.base.errors import ApiError, ClaimError, HardwareError, LedgerError, PrepareError, Retry
from dra_driver.base.machine import NODE_SECONDS
from dra_driver.hardware.facts import Problem
from dra_driver.node.devices.offering import Inventory, Offering
from dra_driver.node.ledger.record import ClaimState
from dra_driver.node.prepare import preparer
from tests.support.plugin.parts import DRIVER, POOL, Clock, Rig, claim_wire, config, in_thread, inventory, result


def test_a_prepared_claim_has_its_cdi_file_and_its_devices(rig: Rig) -> None:
    rig.api.put(claim_wire("u1", result("gpu-0", "a"), result("mig-1", "b/second"), configs=(config(),)))
    first, second = rig.prepare("u1")
    assert (first.request, first.pool, first.device) == ("a", POOL, "gpu-0")
    assert first.cdi_ids == (f"k8s.{DRIVER}/claim=u1-gpu-0",)
    assert (second.request, second.device) == ("b", "mig-1")
    document = json.loads(rig.files()[rig.file_of("u1")])
    assert [d["name"] for d in document["devices"]] == ["u1-gpu-0", "u1-mig-1"]
    assert document["containerEdits"]["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]
    assert rig.states() == {"u1": "prepared"}


def test_the_api_server_is_asked_again_no_sooner_than_it_asked_for(rig: Rig) -> None:
    rig.allocate("u1", "gpu-0")
    busy = ApiError("too-many-requests", "429", status=429, retry=Retry.NOW, retry_after_s=0.6)
    rig.api.faults = [busy]
    started = time.monotonic()
    assert rig.prepare("u1")
    assert time.monotonic() - started >= 0.6
    rig.api.faults = [busy]
    with pytest.raises(ApiError):
        rig.prepare(rig.allocate("u2", "gpu-1"), 0.5)
    assert rig.api.requests["get"] == 3, "there was no time left to ask again"


def test_unprepare_removes_everything(rig: Rig) -> None:
    rig.allocate("u1", "gpu-0", "gpu-1")
    rig.prepare("u1")
    rig.api.delete("u1")
    rig.unprepare("u1")
    rig.assert_empty()
    rig.unprepare("u1")


def test_unprepare_of_unknown_claim_succeeds(rig: Rig) -> None:
    rig.unprepare("never-seen")
    rig.assert_empty()


@pytest.mark.parametrize("uid", ["", "../etc", "a/b", ".", "x y"])
def test_a_malformed_uid_is_refused(rig: Rig, uid: str) -> None:
    with pytest.raises(ClaimError, match="UID"):
        rig.prepare(uid)
    with pytest.raises(ClaimError, match="UID"):
        rig.unprepare(uid)


def test_repeated_prepare_gives_the_same_answer_and_leaves_the_file_alone(rig: Rig) -> None:
    rig.allocate("u1", "gpu-0")
    first = rig.prepare("u1")
    path = rig.cdi / rig.file_of("u1")
    before = path.read_bytes(), path.stat().st_ino, path.stat().st_mtime_ns
    assert rig.prepare("u1") == first
    rig.restart()
    assert rig.prepare("u1") == first
    assert (path.read_bytes(), path.stat().st_ino, path.stat().st_mtime_ns) == before


def test_repeated_prepare_repairs_a_file_that_was_removed_or_damaged(rig: Rig) -> None:
    rig.allocate("u1", "gpu-0")
    rig.prepare("u1")
    before = rig.files()
    (rig.cdi / rig.file_of("u1")).write_text("{}")
    rig.prepare("u1")
    assert rig.files() == before
    (rig.cdi / rig.file_of("u1")).unlink()
    rig.prepare("u1")
    assert rig.files() == before


def test_a_claim_reallocated_under_its_uid_is_undone_and_prepared_again(rig: Rig) -> None:
    rig.allocate("u1", "gpu-0", "gpu-1")
    rig.prepare("u1")
    rig.allocate("u1", "gpu-2")
    assert [d.device for d in rig.prepare("u1")] == ["gpu-2"]
    assert rig.holders() == {("gpu-2", "u1")}
    assert "gpu-0" not in rig.files()[rig.file_of("u1")].decode()
    rig.allocate("u2", "gpu-0")
    assert rig.prepare("u2")


def test_a_config_added_by_reallocation_is_noticed(rig: Rig) -> None:
    rig.allocate("u1", "gpu-0")
    rig.prepare("u1")
    rig.allocate("u1", "gpu-0", configs=(config(),))
    rig.prepare("u1")
    assert rig.ledger.get("u1").allocation["configs"]


def test_a_claim_with_admin_access_holds_nothing(rig: Rig) -> None:
    rig.allocate("owner", "gpu-0")
    rig.prepare("owner")
    rig.api.put(claim_wire("monitor", result("gpu-0", adminAccess=True), result("gpu-1", adminAccess=True)))
    assert [d.device for d in rig.prepare("monitor")] == ["gpu-0", "gpu-1"]
    assert rig.holders() == {("gpu-0", "owner")}
    rig.allocate("second", "gpu-1")
    assert rig.prepare("second")
    rig.unprepare("monitor")
    assert rig.states() == {"owner": "prepared", "second": "prepared"}


def test_share_ids_are_passed_on_and_shares_of_one_device_do_not_exclude_each_other(rig: Rig) -> None:
    shares = ["11111111-2222-3333-4444-555555555555", "66666666-7777-8888-9999-aaaaaaaaaaaa"]
    for uid, share in zip(("u1", "u2"), shares, strict=True):
        rig.api.put(claim_wire(uid, result("gpu-0", shareID=share)))
        (device,) = rig.prepare(uid)
        assert device.share_id == share
        assert device.cdi_ids == (f"k8s.{DRIVER}/claim={uid}-gpu-0-{share}",)
    rig.allocate("whole", "gpu-0")
    with pytest.raises(ClaimError, match="still held"):
        rig.prepare("whole", 0.3)


def test_a_reboot_keeps_the_claim_and_rebuilds_its_effects(rig: Rig) -> None:
    rig.allocate("u1", "gpu-0")
    answer, before = rig.prepare("u1"), rig.files()
    rig.reboot()
    assert rig.repair.run() == 0
    assert rig.files() == {}
    assert rig.prepare("u1") == answer
    assert rig.files() == before
    assert rig.ledger.get("u1").boot_id == rig.boot_id


def test_a_claim_of_an_earlier_boot_can_be_unprepared(rig: Rig) -> None:
    rig.allocate("u1", "gpu-0")
    rig.prepare("u1")
    rig.reboot()
    rig.unprepare("u1")
    rig.assert_empty()


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda w: w["metadata"].update(uid="other"), "claim.uid-mismatch"),
        (lambda w: w.pop("status"), "claim.not-allocated"),
        (lambda w: w["status"]["allocation"]["devices"]["results"][0].update(driver="x"), "claim.not-ours"),
        (lambda w: w["status"]["allocation"]["devices"]["results"][0].update(pool="n2/x"), "claim.other-pool"),
        (
            lambda w: w["status"]["allocation"]["devices"]["results"][0].update(pool="n2/x", device="gpu-77"),
            "claim.other-pool",
        ),
    ],
)
def test_a_claim_that_is_not_for_us_is_refused_at_once(rig: Rig, change, code: str) -> None:
    change(rig.api.put(claim_wire("u1", result("gpu-0"), name="claim-u1")))
    with pytest.raises(ClaimError) as caught:
        rig.preparer.prepare("ns", "claim-u1", "u1", _deadline(30))
    assert caught.value.code == code
    rig.assert_empty()


def test_a_claim_that_does_not_exist_is_refused(rig: Rig) -> None:
    with pytest.raises(ClaimError) as caught:
        rig.prepare("nobody")
    assert caught.value.code == "claim.not-found"


def test_transient_api_failures_are_retried_inside_the_deadline(rig: Rig) -> None:
    rig.allocate("u1", "gpu-0")
    rig.api.faults = [
        ApiError("unreachable", "no route", retry=Retry.NOW),
        ApiError("unavailable", "503", status=503, retry=Retry.NOW),
        ApiError("not-served", "a proxy's page", status=404, retry=Retry.NOW),
    ]
    assert rig.prepare("u1")
    assert rig.api.requests["get"] == 4


def test_an_api_that_does_not_answer_is_an_error_before_the_deadline(rig: Rig) -> None:
    rig.api.faults = [ApiError("unreachable", "no route", retry=Retry.NOW)] * 50
    with pytest.raises(ApiError, match="no route"):
        rig.prepare("u1", 0.5)
    rig.assert_empty()


def test_a_refusal_by_the_api_that_no_retry_solves_is_not_retried(rig: Rig) -> None:
    rig.api.faults = [ApiError("invalid", "no", status=422)]
    with pytest.raises(ApiError):
        rig.prepare("u1")
    assert rig.api.requests["get"] == 1


def test_prepare_waits_for_hardware_and_says_what_for(rig: Rig) -> None:
    rig.allocate("u1", "gpu-0")
    ready, rig.inventory = rig.inventory, inventory(0, 0).__class__(waiting_for="the NVIDIA driver to be loaded")
    with pytest.raises(ClaimError, match="the NVIDIA driver to be loaded"):
        rig.prepare("u1", 0.3)
    thread, outcome = in_thread(rig.prepare, "u1")
    rig.inventory = ready
    thread.join(60)
    assert outcome[0][0].device == "gpu-0"


def test_a_device_that_is_not_here_is_named(rig: Rig) -> None:
    rig.allocate("u1", "gpu-0", "gpu-99")
    with pytest.raises(ClaimError, match="gpu-99") as caught:
        rig.prepare("u1", 0.3)
    assert caught.value.code == "claim.device-unknown"
    rig.assert_empty()


def assert_is_refused_at_once(rig: Rig) -> None:
    looked: list[float] = []
    rig.preparer._wait._pause.pause = looked.append  # type: ignore[method-assign]
    with pytest.raises(ClaimError, match="delete the pods that use claim ns/claim-u1") as caught:
        rig.prepare("u1")
    assert (caught.value.code, looked) == ("claim.gpu-lost", [])
    rig.assert_empty()


def test_a_claim_of_a_lost_gpu_is_refused_at_once_and_says_that_the_pod_must_go(rig: Rig) -> None:
    rig.allocate("u1", "gpu-0000-65-00-0-mig-1g10gb-19-0")
    rig.inventory = replace(rig.inventory, problems=(Problem("hardware.gpu-lost", "0000:65:00.0", "the GPU is lost"),))
    assert_is_refused_at_once(rig)


def test_a_lost_gpu_that_is_still_published_is_refused_at_once_too(rig: Rig) -> None:
    """Where health is watched, a lost GPU stays published with a taint, and a claim may have been allocated before."""
    rig.allocate("u1", "gpu-0")
    lost = tuple(
        replace(device, gpu=replace(device.gpu, is_lost=True)) if device.name == "gpu-0" else device
        for device in rig.inventory.offering.devices
    )
    rig.inventory = Inventory(Offering(lost))
    assert_is_refused_at_once(rig)


def test_a_missing_device_node_is_waited_for(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparer, "NODE_SECONDS", 600.0)
    rig.allocate("u1", "gpu-0")
    rig.hardware.missing = {0}
    with pytest.raises(HardwareError, match="/dev/nvidia0"):
        rig.prepare("u1", 0.3)
    thread, outcome = in_thread(rig.prepare, "u1")
    rig.hardware.missing = set()
    thread.join(60)
    assert outcome[0][0].device == "gpu-0"


def test_a_device_node_that_stays_missing_is_refused_soon_with_the_name_of_its_device(rig: Rig) -> None:
    """The kubelet passes the message on as an Event of the pod, which has only the names of the claim's devices."""
    rig.allocate("u1", "gpu-1", "gpu-0")
    rig.hardware.missing = {0}
    started = time.monotonic()
    with pytest.raises(HardwareError, match=r"^device gpu-0: /dev/nvidia0 is not there$") as caught:
        rig.prepare("u1", 600.0)
    assert (caught.value.code, caught.value.retry) == ("hardware.node-missing", Retry.LATER)
    assert time.monotonic() - started < 60, "a wait that ends with the call takes ten times as long"
    rig.assert_empty()


def test_the_wait_for_a_device_node_begins_when_it_is_first_missed(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The nodes come after the driver, for which the same call may have waited longer than for any node."""
    clock = Clock()
    monkeypatch.setattr(machine, "time", SimpleNamespace(monotonic=clock))
    rig.allocate("u1", "gpu-0")
    there, rig.inventory = rig.inventory, Inventory(Offering(()), waiting_for="the GPU driver")
    rig.hardware.missing = {0}

    def pause(_seconds: float) -> None:
        if rig.inventory is there:
            clock.seconds += NODE_SECONDS / 2
            rig.hardware.missing = set()
        else:
            clock.seconds += 3 * NODE_SECONDS
            rig.inventory = there

    rig.preparer._wait._pause.pause = pause  # type: ignore[method-assign]
    assert [device.device for device in rig.prepare("u1")] == ["gpu-0"]


def test_a_lost_gpu_leaves_its_claim_in_the_ledger_and_unprepare_works(rig: Rig) -> None:
    rig.allocate("u1", "gpu-0")
    rig.prepare("u1")
    rig.inventory = inventory(0)
    assert rig.repair.refresh_cdi() == 0
    assert rig.states() == {"u1": "prepared"}
    rig.unprepare("u1")
    rig.assert_empty()


def test_cdi_files_follow_a_changed_major(rig: Rig) -> None:
    for uid, device in (("u1", "gpu-0"), ("u2", "gpu-1")):
        rig.allocate(uid, device)
        rig.prepare(uid)
    assert rig.repair.refresh_cdi() == 0
    rig.hardware.major = 234
    assert rig.repair.refresh_cdi() == 2
    node = json.loads(rig.files()[rig.file_of("u2")])["devices"][0]["containerEdits"]["deviceNodes"][0]
    assert (node["major"], node["minor"]) == (234, 1)
    assert rig.repair.refresh_cdi() == 0


def test_an_unprepare_that_was_cut_short_keeps_the_device_until_it_is_repeated(rig: Rig, monkeypatch) -> None:
    rig.allocate("u1", "gpu-0")
    rig.prepare("u1")
    before = rig.files()

    def full(*_: object) -> None:
        raise LedgerError("read-only", "no writing")

    monkeypatch.setattr(rig.ledger, "forget", full)
    with pytest.raises(LedgerError):
        rig.unprepare("u1")
    assert rig.files() == {}
    rig.restart()
    assert rig.repair.run() == 0
    assert rig.repair.refresh_cdi() == 1
    assert rig.files() == before
    assert rig.holders() == {("gpu-0", "u1")}
    rig.unprepare("u1")
    rig.assert_empty()


def test_cdi_files_of_an_earlier_boot_are_not_refreshed(rig: Rig) -> None:
    rig.allocate("u1", "gpu-0")
    rig.prepare("u1")
    rig.reboot()
    assert rig.repair.refresh_cdi() == 0
    assert rig.files() == {}


def test_the_same_claim_in_two_calls_at_once_is_prepared_once(rig: Rig) -> None:
    rig.allocate("u1", "gpu-0")
    answers: list[object] = []
    threads = [threading.Thread(target=lambda: answers.append(rig.prepare("u1"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(answers) == 8
    assert len(set(answers)) == 1


def test_a_failed_step_leaves_nothing_behind(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.allocate("u1", "gpu-0")

    def refuse(*_: object) -> None:
        raise PrepareError("cdi-write", "no space", retry=Retry.LATER)

    with monkeypatch.context() as patch:
        patch.setattr(rig.store, "_replace", refuse)
        with pytest.raises(PrepareError):
            rig.prepare("u1")
    rig.assert_empty()
    assert rig.prepare("u1")


def test_a_claim_whose_file_is_missing_after_a_crash_gets_it_from_the_repair_and_from_a_repeated_call(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        """What a kill looks like to the call: nothing after it runs."""

    def die(*_: object) -> bool:
        raise Killed

    rig.allocate("u1", "gpu-0")
    with monkeypatch.context() as patch:
        patch.setattr(rig.store, "write", die)
        with pytest.raises(Killed):
            rig.prepare("u1")
    assert (rig.states(), rig.store.list()) == ({"u1": "prepared"}, ())
    rig.restart()
    assert rig.repair.refresh_cdi() == 1
    assert len(rig.store.list()) == 1
    rig.prepare("u1")
    rig.unprepare("u1")
    rig.assert_empty()


def test_waiting_calls_end_with_the_agent(rig: Rig) -> None:
    rig.allocate("u1", "gpu-0")
    rig.inventory = inventory(0, 0).__class__(waiting_for="the driver")
    thread, outcome = in_thread(rig.prepare, "u1", 30.0)
    rig.preparer.close()
    thread.join(60)
    assert outcome[0].code == "claim.hardware-waiting"


def _deadline(seconds: float):
    from dra_driver.base.machine import Deadline

    return Deadline.after(seconds)


def test_a_claim_that_an_earlier_agent_prepared_is_found_by_the_commit(rig: Rig) -> None:
    rig.allocate("u1", "gpu-0")
    answer = rig.prepare("u1")
    (rig.store.root / rig.file_of("u1")).unlink()
    rig.ledger._kept._values.clear()  # as in a new process
    assert rig.prepare("u1") == answer
    assert list(rig.files()) == [rig.file_of("u1")]
    assert rig.states() == {"u1": "prepared"}


def test_a_claim_that_an_earlier_agent_left_half_done_is_prepared_again(rig: Rig) -> None:
    rig.allocate("u1", "gpu-0")
    rig.prepare("u1")
    rig.ledger.set_state("u1", ClaimState.UNPREPARING)
    rig.ledger._kept._values.clear()
    assert rig.prepare("u1")
    assert rig.states() == {"u1": "prepared"}


def test_only_the_first_call_waits_for_a_device_that_is_not_here(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparer, "LATE_SECONDS", 0.3)
    looked: list[float] = []
    monkeypatch.setattr(
        rig.preparer._wait._pause, "pause", lambda seconds: looked.append(seconds) or time.sleep(seconds)
    )
    rig.allocate("u1", "gpu-99")
    with pytest.raises(ClaimError, match="gpu-99"):
        rig.prepare("u1")
    assert looked
    looked.clear()
    with pytest.raises(ClaimError, match="gpu-99"):
        rig.prepare("u1")
    assert looked == []
    rig.inventory = inventory(100)
    assert rig.prepare("u1")[0].device == "gpu-99"


@pytest.mark.parametrize("is_published", [True, False])
def test_a_claim_that_waits_for_a_holder_whose_gpu_was_lost_says_at_once_which_pods_must_go(
    rig: Rig, is_published: bool
) -> None:
    rig.prepare(rig.allocate("old", "gpu-0"))
    rig.prepare(rig.allocate("other", "gpu-1"))
    before = rig.inventory
    devices = [replace(d, gpu=replace(d.gpu, is_lost=True)) if d.name == "gpu-0" else d for d in before.devices]
    lost = Inventory(Offering(tuple(device for device in devices if is_published or device.name != "gpu-0")))
    rig.inventory = lost if is_published else replace(lost, problems=(Problem("hardware.gpu-lost", "0", "lost"),))
    rig.repair.refresh_cdi()
    rig.inventory = before
    rig.restart()
    started = time.monotonic()
    with pytest.raises(ClaimError, match="delete the pods that use claim ns/claim-old") as caught:
        rig.prepare(rig.allocate("new", "gpu-0"))
    assert caught.value.code == "claim.device-in-use"
    assert time.monotonic() - started < 30
    with pytest.raises(ClaimError, match="does not terminate"):
        rig.prepare(rig.allocate("next", "gpu-1"), 0.3)
    assert rig.prepare("old"), "the kubelet may repeat the call"
    rig.unprepare("old")
    assert rig.prepare("new")
