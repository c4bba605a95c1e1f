"""Sharing within Prepare and Unprepare: the first claim makes the effect, the last undoes it, and all agree."""

import json
import logging
import threading

import pytest

from dra_driver.base.errors import ClaimError, HardwareError, LedgerError, PrepareError, SharingError
from dra_driver.base.machine import Deadline
from dra_driver.base.wire import ComputeMode, Interval
from tests.node.support.ledger_file import sql
from tests.support.plugin.mig_parts import OTHER, WHOLE, small
from tests.support.plugin.parts import in_thread
from tests.support.plugin.sharing_parts import BOTH_MODES, SharingRig, mps, replica, time_slicing

EXCLUSIVE = ("EXCLUSIVE_PROCESS", "DEFAULT")


# Time slices


def test_an_interval_is_set_once_and_restored_once(rig: SharingRig) -> None:
    rig.allocate("u1", WHOLE, configs=(time_slicing("Long"),))
    rig.prepare("u1")
    rig.prepare("u1")
    rig.restart()
    rig.prepare("u1")
    assert (rig.intervals(), rig.effects()) == (("Long", "Default"), {WHOLE: ["u1"]})
    rig.unprepare("u1")
    assert rig.sets == [(WHOLE, "Long"), (WHOLE, "Default")]
    rig.assert_unshared()


def test_a_commit_that_fails_leaves_nothing_behind(rig: SharingRig, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PrepareError("any", "commit failed")

    rig.allocate("u1", WHOLE, configs=(time_slicing("Long"),))
    with monkeypatch.context() as patch:
        patch.setattr(rig.ledger, "commit", refuse)
        with pytest.raises(PrepareError, match="commit failed"):
            rig.prepare("u1")
    assert rig.intervals() == ("Default", "Default")
    rig.assert_unshared()
    rig.assert_empty()


def test_the_default_interval_sets_nothing_unless_another_one_was_set(rig: SharingRig) -> None:
    rig.allocate("u1", WHOLE, configs=(time_slicing("Default"),))
    rig.prepare("u1")
    rig.unprepare("u1")
    assert rig.sets == []
    rig.hardware.set_time_slice(rig._shared(0), Interval.SHORT, 1)
    rig.restart()
    rig.prepare("u1")
    assert rig.intervals() == ("Default", "Default")


def test_replicas_of_one_gpu_run_together_and_the_last_one_restores(sliced: SharingRig) -> None:
    for index in range(3):
        sliced.allocate(f"u{index}", replica(index))
        (device,) = sliced.prepare(f"u{index}")
        assert device.device == replica(index)
        nodes = json.loads(sliced.files()[sliced.file_of(f"u{index}")])["devices"][0]["containerEdits"]["deviceNodes"]
        assert [node["path"] for node in nodes] == ["/dev/nvidia0"]
    assert sliced.effects() == {WHOLE: ["u0", "u1", "u2"]}
    for index in (1, 0):
        sliced.unprepare(f"u{index}")
        assert sliced.intervals() == ("Long", "Default")
    sliced.unprepare("u2")
    assert sliced.sets == [(WHOLE, "Long"), (WHOLE, "Default")]
    sliced.assert_unshared()


def test_a_replica_and_the_whole_gpu_exclude_each_other(sliced: SharingRig) -> None:
    sliced.allocate("u1", replica(0))
    sliced.allocate("whole", WHOLE)
    sliced.prepare("u1")
    with pytest.raises(ClaimError, match="claim-u1") as refused:
        sliced.prepare("whole", 0.3)
    assert refused.value.code == "claim.device-in-use"
    sliced.unprepare("u1")
    sliced.prepare("whole")
    with pytest.raises(ClaimError, match="claim-whole"):
        sliced.prepare("u1", 0.3)


def test_a_gpu_without_time_slices_is_a_clear_error_and_nothing_is_left(rig: SharingRig) -> None:
    def refuse(*_: object) -> None:
        raise HardwareError("time-slice-unsupported", "no such setting")

    rig.hardware.set_time_slice = refuse  # type: ignore[method-assign]
    rig.allocate("u1", WHOLE, configs=(time_slicing("Long"),))
    with pytest.raises(HardwareError) as refused:
        rig.prepare("u1")
    assert refused.value.code == "hardware.time-slice-unsupported"
    rig.assert_unshared()


def test_time_slices_are_refused_where_an_administrator_allows_one_process(rig: SharingRig) -> None:
    rig.hardware.set_compute_mode(rig._shared(0), ComputeMode.EXCLUSIVE_PROCESS, 1)
    rig.allocate("u1", WHOLE, configs=(time_slicing("Long"),))
    with pytest.raises(SharingError, match="EXCLUSIVE_PROCESS") as refused:
        rig.prepare("u1")
    assert refused.value.code == "sharing.compute-mode"
    assert (rig.compute_modes(), rig.effects()) == (EXCLUSIVE, {})


# MPS


def test_one_daemon_serves_all_claims_and_the_compute_mode_is_restored_after_the_last(served: SharingRig) -> None:
    served.allocate("u1", replica(0))
    served.allocate("u2", replica(1))
    served.prepare("u1")
    served.prepare("u2")
    assert served.compute_modes() == EXCLUSIVE
    assert served.supervisor.daemons() == {WHOLE: served.gpu(0).uuid}
    served.unprepare("u1")
    assert served.compute_modes() == EXCLUSIVE
    served.unprepare("u2")
    served.assert_unshared()


def test_a_client_gets_the_channel_and_its_own_limits(served: SharingRig) -> None:
    served.allocate_share("u1", "s1", memory="10Gi")
    served.allocate_share("u2", "s2", memory="20Gi", configs=(mps(defaultActiveThreadPercentage=30),))
    served.prepare("u1")
    served.prepare("u2")
    document = json.loads(served.files()[served.file_of("u1")])["devices"][0]
    mounts = {mount["containerPath"]: mount["hostPath"] for mount in document["containerEdits"]["mounts"]}
    assert mounts == {"/tmp/nvidia-mps": f"/mps/{OTHER}/pipe", "/dev/shm": f"/mps/{OTHER}/shm"}
    assert all("ro" not in mount["options"] for mount in document["containerEdits"]["mounts"])
    (first,) = served.env_of("u1").values()
    (second,) = served.env_of("u2").values()
    assert first["CUDA_MPS_PIPE_DIRECTORY"] == "/tmp/nvidia-mps"
    assert first["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=10240M"
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in first
    assert second["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=20480M"
    assert second["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "30"


def test_the_same_device_twice_in_one_claim_is_one_effect_and_two_devices(served: SharingRig) -> None:
    served.allocate_share("u1", "s1", "s2", memory="4Gi")
    devices = served.prepare("u1")
    assert [(d.device, d.share_id) for d in devices] == [(OTHER, "s1"), (OTHER, "s2")]
    assert {env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] for env in served.env_of("u1").values()} == {"0=8192M"}
    assert served.effects() == {OTHER: ["u1"]}
    served.unprepare("u1")
    served.assert_unshared()


def test_a_mig_device_that_is_made_for_the_claim_has_its_own_daemon(rig: SharingRig) -> None:
    rig.now_prepare("u1", small(3), configs=(mps("MigDeviceConfig", defaultActiveThreadPercentage=50),))
    (partition,) = rig.partitions(0)
    assert rig.supervisor.daemons() == {small(3): partition.uuid}
    assert "CUDA_MPS_PIPE_DIRECTORY" in rig.env_of("u1")[f"u1-{small(3)}"]
    rig.unprepare("u1")
    assert rig.partitions(0) == []
    rig.assert_unshared()


def test_a_mig_device_without_a_compute_mode_gets_a_daemon_anyway(rig: SharingRig) -> None:
    def refuse(*_: object) -> None:
        raise HardwareError("compute-mode-unsupported", "MIG devices have none")

    rig.hardware.compute_mode = refuse  # type: ignore[method-assign]
    rig.now_prepare("u1", small(3), configs=(mps("MigDeviceConfig"),))
    assert list(rig.supervisor.daemons()) == [small(3)]


def test_a_refusal_of_mps_on_a_mig_device_is_reported_and_nothing_is_left(rig: SharingRig) -> None:
    rig.supervisor.refusal = "MPS is not supported on MIG device"
    with pytest.raises(SharingError, match="not supported on MIG"):
        rig.now_prepare("u1", small(3), configs=(mps("MigDeviceConfig"),))
    assert rig.partitions(0) == []
    rig.assert_unshared()


def test_without_a_supervisor_no_partition_is_made_for_mps_and_no_mode_is_switched(
    rig: SharingRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed: list[str] = []
    for call in ("set_mig_mode", "create_partition"):
        monkeypatch.setattr(rig.hardware, call, lambda *_, call=call, **_options: changed.append(call))
    rig.supervisor.is_there = False
    with pytest.raises(SharingError) as refused:
        rig.now_prepare("u1", small(3), configs=(mps("MigDeviceConfig"),))
    assert refused.value.code == "sharing.mps-unavailable"
    assert (changed, rig.states()) == ([], {})
    rig.assert_unshared()


@pytest.mark.parametrize("devices", [(small(3), OTHER), (OTHER, small(3)), (WHOLE,)])
@pytest.mark.parametrize("obstacle", ["no supervisor", "compute mode"])
def test_what_one_device_of_a_claim_lacks_is_found_before_another_one_is_changed(
    rig: SharingRig, monkeypatch: pytest.MonkeyPatch, devices: tuple[str, ...], obstacle: str
) -> None:
    changed: list[str] = []
    rig.hardware.set_mig_mode(rig.gpu(0), WHOLE in devices, 1)  # an administrator left it on
    rig.scan()
    for call in ("set_mig_mode", "create_partition", "set_compute_mode"):
        monkeypatch.setattr(rig.hardware, call, lambda *_, call=call, **_options: changed.append(call))
    if obstacle == "no supervisor":
        rig.supervisor.is_there = False
    else:
        known = rig.hardware.compute_mode
        monkeypatch.setattr(
            rig.hardware, "compute_mode", lambda d, s: ComputeMode.PROHIBITED if d.name in devices else known(d, s)
        )
    rig.allocate("u1", *devices, configs=(mps(),))
    for _ in range(3):
        with pytest.raises(SharingError):
            rig.prepare("u1")
    assert (changed, rig.states(), rig.files()) == ([], {}, {})
    assert rig.supervisor.daemons() == {}


def test_without_a_supervisor_nothing_is_changed_and_the_claim_can_be_unprepared(rig: SharingRig) -> None:
    rig.supervisor.is_there = False
    rig.allocate("u1", WHOLE, configs=(mps(),))
    with pytest.raises(SharingError) as refused:
        rig.prepare("u1")
    assert refused.value.code == "sharing.mps-unavailable"
    assert rig.compute_modes() == BOTH_MODES
    rig.unprepare("u1")
    rig.assert_unshared()


def test_a_claim_is_not_unprepared_until_a_missing_supervisor_is_back(rig: SharingRig) -> None:
    rig.allocate("u1", WHOLE, configs=(mps(),))
    rig.prepare("u1")
    rig.supervisor.is_there = False
    with pytest.raises(SharingError):
        rig.unprepare("u1")
    assert rig.effects() == {WHOLE: ["u1"]}
    rig.supervisor.is_there = True
    rig.unprepare("u1")
    rig.assert_unshared()


def test_a_daemon_that_died_is_started_again_when_the_claim_is_prepared_again(rig: SharingRig) -> None:
    rig.allocate("u1", WHOLE, configs=(mps(),))
    rig.prepare("u1")
    rig.supervisor._write({})
    rig.prepare("u1")
    assert list(rig.supervisor.daemons()) == [WHOLE]


def test_a_daemon_without_a_claim_is_not_ended_under_a_claim_that_begins_to_use_it(rig: SharingRig) -> None:
    rig.supervisor._write({WHOLE: rig._shared(0).uuid})
    rig.allocate("u1", WHOLE, configs=(mps(),))
    beginning = threading.Thread(target=rig.prepare, args=("u1",))

    def begin() -> None:
        beginning.start()
        beginning.join(0.5)  # it ends within that time only if nothing makes it wait

    rig.supervisor.before_end = begin
    assert rig.repair.settle_sharing() == 1
    beginning.join()
    assert list(rig.supervisor.daemons()) == [WHOLE]


def test_a_daemon_of_a_device_that_a_call_works_on_is_not_ended(rig: SharingRig) -> None:
    rig.supervisor._write({WHOLE: rig._shared(0).uuid})
    with rig.locks.hold([f"sharing/{WHOLE}"], Deadline.after(0)):
        thread, outcome = in_thread(rig.repair.settle_sharing)
        thread.join(60)
    assert outcome == [0]
    assert list(rig.supervisor.daemons()) == [WHOLE]
    assert rig.repair.settle_sharing() == 1
    assert rig.supervisor.daemons() == {}


@pytest.mark.parametrize("damaged", ["{", "null", "{}"])
def test_a_damaged_effect_is_named_and_no_daemon_is_ended_that_it_may_belong_to(
    rig: SharingRig, damaged: str, caplog: pytest.LogCaptureFixture
) -> None:
    rig.allocate("u1", WHOLE, configs=(mps(),))
    rig.prepare("u1")
    rig.supervisor._write({**rig.supervisor.daemons(), OTHER: "GPU-other"})
    sql(rig.data / "ledger.db", f"UPDATE device_effects SET identity = '{damaged}'")
    assert rig.repair.settle_sharing() == 0
    assert set(rig.supervisor.daemons()) == {WHOLE, OTHER}
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert {record.dra_fields["code"] for record in warnings} == {"ledger.record"}


@pytest.mark.parametrize(("column", "damaged"), [("allocation", "null"), ("allocation", "[1]"), ("steps", "5")])
def test_a_claim_whose_row_is_damaged_is_refused_by_name_and_others_go_on(
    rig: SharingRig, column: str, damaged: str
) -> None:
    for uid, device in (("u1", WHOLE), ("u2", OTHER)):
        rig.allocate(uid, device)
        rig.prepare(uid)
    sql(rig.data / "ledger.db", f"UPDATE claims SET {column} = '{damaged}' WHERE uid = 'u1'")
    rig.restart()
    with pytest.raises(LedgerError, match="claim u1 can't be read"):
        rig.unprepare("u1")
    rig.prepare("u2")
    rig.unprepare("u2")


def test_an_administrators_exclusive_mode_is_left_as_it_was(rig: SharingRig) -> None:
    rig.hardware.set_compute_mode(rig._shared(0), ComputeMode.EXCLUSIVE_PROCESS, 1)
    rig.allocate("u1", WHOLE, configs=(mps(),))
    rig.prepare("u1")
    rig.unprepare("u1")
    assert rig.compute_modes() == EXCLUSIVE
    rig.hardware.set_compute_mode(rig._shared(0), ComputeMode.PROHIBITED, 1)
    with pytest.raises(SharingError, match="PROHIBITED"):
        rig.prepare("u1")
