"""Holds of whole GPUs: nobody works on a device of theirs meanwhile, and what claims hold is read under the locks."""

from dataclasses import replace

import pytest

from dra_driver.base.errors import PrepareError
from dra_driver.base.machine import Deadline
from dra_driver.base.wire import DeviceType
from dra_driver.node.devices.describing import Device
from dra_driver.node.ledger.locks import GpuHolds, NodeLocks, device_lock, gpu_lock
from dra_driver.node.ledger.record import ClaimState
from tests.support.plugin.mig_parts import OTHER, WHOLE, MigRig, small

AT_ONCE = Deadline(0)


@pytest.fixture
def rig(tmp_path):
    rig = MigRig(tmp_path)
    yield rig
    rig.close()


@pytest.fixture
def holds(rig) -> GpuHolds:
    return GpuHolds(rig.locks, rig.ledger, rig)


def is_free(rig: MigRig, name: str) -> bool:
    """Return whether another agent of the node could take a lock now."""
    other = NodeLocks(rig.data / "locks")
    try:
        with other.hold([name], AT_ONCE):
            return True
    except PrepareError:
        return False
    finally:
        other.close()


@pytest.mark.parametrize(
    "device", [WHOLE, f"{WHOLE}-vfio", small(0), small(6), f"{WHOLE}-share-17", f"{small(3)}-share-127"]
)
def test_every_device_of_the_gpu_is_held_whether_it_exists_or_not(rig, holds, device):
    rig.by_hand("1g.10gb", 3)
    with holds.hold([rig.gpu()], rig.soon()):
        assert not is_free(rig, device_lock(device))
        assert not is_free(rig, gpu_lock("0000:01:00.0"))
        assert is_free(rig, device_lock(OTHER))
        assert is_free(rig, device_lock(small(0, OTHER)))
    assert is_free(rig, device_lock(device))


def test_what_claims_hold_is_read_under_the_locks(rig, holds):
    rig.now_prepare("u1", small(3))
    rig.now_prepare("u2", small(0, OTHER))
    with holds.hold([rig.gpu()], rig.soon()) as holders:
        assert holders[small(3)] == "claim ns/claim-u1 (UID u1)"
        assert all(name.startswith(WHOLE) for name in holders)
    with holds.hold([rig.gpu(0), rig.gpu(1)], rig.soon()) as holders:
        assert {small(3), small(0, OTHER)} <= set(holders)
    rig.unprepare("u1")
    with holds.hold([rig.gpu()], rig.soon()) as holders:
        assert holders == {}


def test_a_lock_that_does_not_become_free_is_named_with_the_claims_and_nothing_stays_held(rig, holds):
    rig.now_prepare("u1", small(3))
    other = NodeLocks(rig.data / "locks")
    with (
        other.hold([device_lock(small(3))], AT_ONCE),
        pytest.raises(PrepareError) as caught,
        holds.hold([rig.gpu()], AT_ONCE),
    ):
        pytest.fail("held")
    assert caught.value.code == "prepare.locked"
    assert caught.value.message == (
        f"another call is still working on device/{small(3)}; claim ns/claim-u1 (UID u1) has devices of the GPU"
    )
    assert all(is_free(rig, device_lock(name)) for name in holds.device_names([rig.gpu()]))


def test_a_claim_whose_container_may_still_run_counts_as_a_holder(rig, holds):
    rig.now_prepare("u1", small(3))
    rig.ledger.forget(rig.ledger.get("u1"), ["pod-1"])
    with holds.hold([rig.gpu()], rig.soon()) as holders:
        assert holders[small(3)] == "claim ns/claim-u1 (its pod may still run)"


def test_a_device_that_appears_in_the_inventory_before_the_locks_are_held_is_held_too(rig, holds, monkeypatch):
    hold, late = rig.locks.hold, f"{WHOLE}-mig-1c3g40gb-9-0"

    def appearing(*call):
        device = Device(late, DeviceType.MIG, {}, {}, rig.gpu())
        rig.inventory = replace(rig.inventory, hidden=(*rig.inventory.hidden, device))
        return hold(*call)

    monkeypatch.setattr(rig.locks, "hold", appearing)
    with holds.hold([rig.gpu()], rig.soon()):
        assert not is_free(rig, device_lock(late))


def test_a_device_that_only_the_ledger_knows_is_held(rig, holds):
    rig.now_prepare("u1", small(3))
    gpu = rig.gpu()
    bare = type(gpu)(gpu.uuid, gpu.pci_address, gpu.minor, None)  # neither profiles nor partitions could be read
    assert small(3) in GpuHolds(rig.locks, rig.ledger).device_names([bare])


def test_a_claim_that_takes_a_gpu_out_of_mig_mode_holds_every_device_of_it_and_so_does_its_end(rig, monkeypatch):
    rig.hardware.set_mig_mode(rig.gpu(), True, 5)
    rig.scan()
    switch, free = rig.hardware.set_mig_mode, []

    def switching(*values):
        free.append([name for name in (WHOLE, small(0), small(6)) if is_free(rig, device_lock(name))])
        return switch(*values)

    monkeypatch.setattr(rig.hardware, "set_mig_mode", switching)
    rig.now_prepare("u1", WHOLE)
    rig.unprepare("u1")
    assert (free, rig.modes()) == ([[], []], [True, False])


def test_a_half_done_claim_is_undone_under_the_locks_of_its_devices(rig, monkeypatch):
    rig.now_prepare("u1", small(3))
    rig.ledger.set_state("u1", ClaimState.PREPARING)
    destroy, free = rig.hardware.destroy_partition, []

    def destroying(*values, **more):
        free.append(is_free(rig, device_lock(small(3))))
        return destroy(*values, **more)

    monkeypatch.setattr(rig.hardware, "destroy_partition", destroying)
    assert rig.repair.run() == 1
    assert free == [False]
    rig.assert_untouched()
