"""Claims of MIG partitions: they are made, shared and undone, and an administrator's partitions are left alone."""

import sqlite3
import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from dra_driver.base.errors import ClaimError, DriverError, HardwareError, NodeError
from dra_driver.hardware.simulated import partitioning
from dra_driver.node.ledger.recorded_steps import OWNER_ENV
from tests.support.plugin.mig_parts import OTHER, WHOLE, MigRig, large, small
from tests.support.plugin.parts import claim_wire, in_thread, result
from tests.support.thread_starts import no_thread_starts
from tests.support.waiting import until


def after_inspection(rig, monkeypatch, what):
    """Make `what` happen once, in another thread, after the inspection for a claim and before its partition is made."""
    effects, inspect, once = rig.preparer._effects, rig.preparer._effects.inspect, [what]

    def inspect_then(*call):
        seen = inspect(*call)
        if once:
            in_thread(once.pop())[0].join(60)
        return seen

    monkeypatch.setattr(effects, "inspect", inspect_then)


def test_a_claim_makes_its_partition_and_leaves_nothing(rig):
    (device,) = rig.now_prepare("u1", small(3))
    assert device.device == small(3)
    assert rig.partitions_made() == [(0, "1g.10gb", 3)]
    assert rig.modes() == [True, False]
    (document,) = (rig.store.read(name) for name in rig.store.list())
    edits = document["devices"][0]["containerEdits"]
    assert next(node["path"] for node in edits["deviceNodes"]) == "/dev/nvidia0"
    assert len(edits["deviceNodes"]) == 3
    uuid = rig.partitions()[0].uuid
    assert edits["env"] == [f"{OWNER_ENV}_{small(3).upper().replace('-', '_')}={uuid}/boot-1"]
    rig.unprepare("u1")
    rig.assert_untouched()


def test_preparing_again_changes_nothing(rig):
    rig.now_prepare("u1", small(3))
    before = (rig.files(), rig.partitions_made(), rig.ledger.get("u1"))
    assert rig.now_prepare("u1", small(3))
    assert (rig.files(), rig.partitions_made(), rig.ledger.get("u1")) == before


def test_a_claim_can_have_several_partitions_of_several_gpus(rig):
    rig.now_prepare("u1", small(0), small(1), large(4), small(2, OTHER))
    assert rig.partitions_made() == [(0, "1g.10gb", 0), (0, "1g.10gb", 1), (0, "3g.40gb", 4), (1, "1g.10gb", 2)]
    rig.unprepare("u1")
    rig.assert_untouched()


def test_partitions_of_one_claim_on_two_gpus_are_made_at_the_same_time(rig, monkeypatch):
    both, create = threading.Barrier(2), rig.hardware.create_partition

    def create_together(*arguments, **options):
        both.wait(60)  # breaks, which is an error, if one waits for the other to end
        return create(*arguments, **options)

    for gpu in (rig.gpu(0), rig.gpu(1)):
        rig.hardware.set_mig_mode(gpu, True, 5)
    rig.scan()
    monkeypatch.setattr(rig.hardware, "create_partition", create_together)
    rig.now_prepare("u1", small(0), small(2, OTHER))
    assert rig.partitions_made() == [(0, "1g.10gb", 0), (1, "1g.10gb", 2)]


def test_a_claim_for_which_no_thread_can_be_started_fails_whole_and_is_prepared_at_the_next_attempt(rig):
    with no_thread_starts("partitions"), pytest.raises(NodeError, match="partitions can't be started") as caught:
        rig.now_prepare("u1", small(0), small(2, OTHER))
    assert caught.value.code == "node.thread"
    rig.assert_untouched()
    rig.prepare("u1")
    assert rig.partitions_made() == [(0, "1g.10gb", 0), (1, "1g.10gb", 2)]


def test_if_a_partition_cannot_be_made_the_one_on_the_other_gpu_is_destroyed(rig, monkeypatch):
    create = rig.hardware.create_partition

    def create_on_the_first(gpu, *arguments, **options):
        if gpu.pci_address == rig.gpu(1).pci_address:
            raise HardwareError("partitioning-failed", "no")
        return create(gpu, *arguments, **options)

    monkeypatch.setattr(rig.hardware, "create_partition", create_on_the_first)
    with pytest.raises(HardwareError):
        rig.now_prepare("u1", small(0), small(2, OTHER))
    rig.assert_untouched()


def test_mig_mode_goes_off_with_the_last_partition_only(rig):
    rig.now_prepare("u1", small(0))
    rig.now_prepare("u2", small(1))
    rig.unprepare("u1")
    assert (rig.partitions_made(), rig.modes()) == ([(0, "1g.10gb", 1)], [True, False])
    rig.unprepare("u2")
    rig.assert_untouched()


def test_mig_mode_that_another_claim_switched_off_is_not_ours_any_more_when_the_last_claim_is_forgotten(
    rig, monkeypatch
):
    rig.now_prepare("u1", small(0))
    rig.now_prepare("u2", small(1))
    forget, once = rig.ledger.forget, ["u2"]

    def forget_after_the_other(*record, **more):
        if once:
            in_thread(rig.unprepare, once.pop())[0].join(60)
        forget(*record, **more)

    monkeypatch.setattr(rig.ledger, "forget", forget_after_the_other)
    rig.unprepare("u1")
    rig.assert_untouched()


def test_mig_mode_that_an_administrator_switched_on_stays_on(rig):
    rig.hardware.set_mig_mode(rig.gpu(), True, 5)
    rig.scan()
    rig.now_prepare("u1", small(0))
    rig.unprepare("u1")
    assert rig.modes() == [True, False]


def test_mig_mode_that_an_administrator_switched_on_after_the_intent_stays_on(rig, monkeypatch):
    after_inspection(rig, monkeypatch, lambda: rig.hardware.set_mig_mode(rig.gpu(), True, 5))
    rig.now_prepare("u1", small(0))
    rig.unprepare("u1")
    assert rig.modes() == [True, False]


def test_mig_mode_of_an_administrator_whose_partition_leaves_no_room_stays_on(rig, monkeypatch):
    after_inspection(rig, monkeypatch, lambda: rig.by_hand("3g.40gb", 0))
    monkeypatch.setattr("dra_driver.node.prepare.steps.partitioner.ROOM_SECONDS", 0.0)
    with pytest.raises(HardwareError, match="no room"):
        rig.now_prepare("u1", small(0))
    rig.hardware.destroy_partition(rig.gpu(), rig.partitions()[0].uuid, 5)
    rig.now_prepare("u2", small(0))
    rig.unprepare("u2")
    assert rig.modes() == [True, False]


def test_mig_mode_that_another_claim_switched_on_after_the_intent_is_switched_off_with_the_last_partition(
    rig, monkeypatch
):
    after_inspection(rig, monkeypatch, lambda: rig.now_prepare("u2", small(1)))
    rig.now_prepare("u1", small(0))
    rig.unprepare("u2")
    rig.unprepare("u1")
    rig.assert_untouched()


def test_mig_mode_is_off_at_the_end_although_a_claim_came_and_went_before_the_partition_was_made(rig, monkeypatch):
    def come_and_go():
        rig.now_prepare("u2", small(1))
        rig.unprepare("u2")

    after_inspection(rig, monkeypatch, come_and_go)
    rig.now_prepare("u1", small(0))
    rig.unprepare("u1")
    rig.assert_untouched()


def test_a_whole_gpu_can_be_prepared_while_mig_mode_is_on_and_the_mode_is_restored(rig):
    rig.hardware.set_mig_mode(rig.gpu(), True, 5)
    rig.scan()
    rig.now_prepare("u1", WHOLE)
    assert rig.modes() == [False, False]
    rig.unprepare("u1")
    assert rig.modes() == [True, False]


def test_a_mig_mode_of_ours_that_ended_after_the_scan_is_not_restored(rig):
    rig.now_prepare("u1", small(3))
    rig.scan()
    rig.unprepare("u1")
    rig.now_prepare("u2", WHOLE)
    rig.unprepare("u2")
    rig.assert_untouched()


def test_a_whole_gpu_waits_for_the_partitions_of_a_claim_that_ends(rig):
    rig.now_prepare("u1", small(3))
    rig.allocate("u2", WHOLE)
    thread, outcome = in_thread(rig.prepare, "u2", 60.0)
    until(lambda: rig.preparer._wait._pause._sleepers == 1, "the claim to wait for the GPU")
    assert not outcome
    rig.unprepare("u1")
    thread.join(60)
    assert outcome[0][0].device == WHOLE
    assert rig.modes() == [False, False]
    rig.unprepare("u2")
    rig.assert_untouched()


@pytest.mark.parametrize(("first", "second"), [(WHOLE, small(0)), (large(0), small(2)), (small(2), large(0))])
def test_overlapping_claims_are_refused_with_the_holder_named(rig, first, second):
    rig.now_prepare("u1", first)
    with pytest.raises(ClaimError, match="ns/claim-u1") as caught:
        rig.now_prepare("u2", second, seconds=0.3)
    assert caught.value.code == "claim.device-in-use"
    assert str(caught.value).count("claim-u1") == 1
    rig.unprepare("u1")
    rig.assert_untouched()


def test_an_administrators_partition_is_used_and_left_in_place(rig):
    rig.by_hand("1g.10gb", 3)
    rig.scan()
    rig.now_prepare("u1", small(3))
    rig.unprepare("u1")
    assert rig.partitions_made() == [(0, "1g.10gb", 3)]
    assert rig.modes() == [True, False]


def test_a_partition_that_appears_between_intent_and_making_counts_as_an_administrators(rig, monkeypatch):
    after_inspection(rig, monkeypatch, lambda: rig.by_hand("1g.10gb", 3))
    rig.now_prepare("u1", small(3))
    rig.unprepare("u1")
    assert rig.partitions_made() == [(0, "1g.10gb", 3)]


def test_a_gpu_with_an_administrators_partition_is_static_and_keeps_what_is_held(rig):
    rig.now_prepare("u1", small(3))
    rig.by_hand("1g.20gb", 0)
    assert rig.names() == [f"{WHOLE}-mig-1g10gb-19-3", f"{WHOLE}-mig-1g20gb-15-0"]
    assert len(rig.names(OTHER)) == 26
    rig.unprepare("u1")
    assert rig.names() == [f"{WHOLE}-mig-1g20gb-15-0"]
    rig.hardware.destroy_partition(rig.gpu(), rig.partitions()[0].uuid, 5)
    assert len(rig.names()) == 26


def test_what_is_offered_does_not_depend_on_what_is_prepared(rig):
    def offered():
        rig.scan()
        return [(d.name, d.attributes, d.capacity, d.counters) for d in rig.inventory.devices]

    before = offered()
    rig.now_prepare("u1", small(3))
    assert offered() == before
    rig.unprepare("u1")
    rig.now_prepare("u2", WHOLE)
    assert offered() == before


def test_admin_access_never_makes_or_destroys_a_partition(rig):
    rig.api.put(claim_wire("admin", result(small(3), adminAccess=True)))
    with pytest.raises(ClaimError, match="does not exist now") as caught:
        rig.prepare("admin", 0.3)
    assert caught.value.code == "claim.partition-missing"
    assert rig.partitions_made() == []
    rig.now_prepare("u1", small(3))
    assert rig.prepare("admin")
    rig.unprepare("admin")
    assert rig.partitions_made() == [(0, "1g.10gb", 3)]
    rig.unprepare("u1")
    rig.assert_untouched()


def test_a_partition_in_use_is_waited_for_then_reported(tmp_path):
    rig = MigRig(tmp_path)
    rig.now_prepare("u1", small(3))
    rig.fields = {"processes": [4711]}
    rig.write_profile()
    with pytest.raises(HardwareError, match="4711") as caught:
        rig.preparer.unprepare("u1", rig.soon(0.3))
    assert caught.value.code == "hardware.partition-in-use"
    assert rig.states() == {"u1": "unpreparing"}
    rig.fields = {}
    rig.write_profile()
    rig.unprepare("u1")
    rig.assert_untouched()
    rig.close()


def test_a_lost_gpu_does_not_keep_a_claim_from_ending(tmp_path):
    rig = MigRig(tmp_path)
    rig.now_prepare("u1", small(3))
    rig.fields = {"lost": True}
    rig.write_profile()
    rig.unprepare("u1")
    assert rig.states() == {}
    rig.close()


def test_an_ampere_gpu_is_offered_only_whole_without_mig_mode_and_only_in_partitions_with_it(tmp_path):
    rig = MigRig(tmp_path, model="a100-sxm4-40gb", mig=[])
    assert len(rig.names()) > 10
    assert WHOLE not in rig.names()
    assert rig.names(OTHER) == [OTHER]
    name = next(n for n in rig.names() if "1g5gb-19" in n)
    rig.now_prepare("u1", name)
    assert len(rig.partitions_made()) == 1
    rig.unprepare("u1")
    assert (rig.partitions_made(), rig.modes()) == ([], [True, False])
    rig.close()


def test_a_slow_gpu_delays_no_other(tmp_path, monkeypatch):
    is_slow, goes_on = threading.Event(), threading.Event()

    def sleep(_seconds):
        is_slow.set()
        goes_on.wait(60)

    monkeypatch.setattr(partitioning, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    rig = MigRig(tmp_path, migDelayMs=1)
    rig.allocate("slow", small(0))
    thread, outcome = in_thread(rig.prepare, "slow", 60.0)
    assert is_slow.wait(60)
    rig.now_prepare("quick", small(0, OTHER))
    assert not outcome
    goes_on.set()
    thread.join(60)
    assert not isinstance(outcome[0], Exception)
    rig.close()


def test_claims_on_one_gpu_and_on_two_can_be_prepared_at_once(rig):
    devices = [small(i) for i in range(7)] + [small(i, OTHER) for i in range(7)]
    for index, device in enumerate(devices):
        rig.allocate(f"u{index}", device)
    outcomes = []
    threads = []
    for index in range(len(devices)):
        thread, outcome = in_thread(rig.prepare, f"u{index}", 10.0)
        threads.append(thread)
        outcomes.append(outcome)
    for thread in threads:
        thread.join(60)
    assert [o[0][0].device for o in outcomes] == devices
    assert len(rig.partitions_made()) == 14
    ends = [threading.Thread(target=rig.unprepare, args=(f"u{i}",)) for i in range(len(devices))]
    for thread in ends:
        thread.start()
    for thread in ends:
        thread.join(60)
    rig.assert_untouched()


def test_a_failed_creation_leaves_nothing(rig, monkeypatch):
    def refuse(*_args, **_options):
        raise HardwareError("not-answering", "hangs")

    monkeypatch.setattr(rig.hardware, "create_partition", refuse)
    with pytest.raises(DriverError, match="hangs"):
        rig.now_prepare("u1", small(3), seconds=0.5)
    rig.assert_untouched()


def test_room_on_the_gpu_that_is_freed_a_moment_late_is_waited_for_within_the_call(rig, monkeypatch):
    create, refusals = rig.hardware.create_partition, [HardwareError("insufficient-resources", "not yet")] * 2

    def late(*arguments, **options):
        if refusals:
            raise refusals.pop()
        return create(*arguments, **options)

    monkeypatch.setattr(rig.hardware, "create_partition", late)
    assert rig.now_prepare("u1", small(3))
    assert rig.partitions_made() == [(0, "1g.10gb", 3)]
    rig.unprepare("u1")
    rig.assert_untouched()


def test_each_change_of_mode_or_partitions_is_announced_before_and_after_it(rig, monkeypatch):
    seen = []

    @contextmanager
    def change(_):
        seen.append((rig.modes()[0], rig.partitions_made()))
        yield
        seen.append((rig.modes()[0], rig.partitions_made()))

    monkeypatch.setattr(rig.repair._modes.own_changes, "change", change)
    made = [(0, "1g.10gb", 3)]
    rig.now_prepare("u1", small(3))
    assert (seen[0], seen[-1]) == ((False, []), (True, made))
    seen.clear()
    rig.unprepare("u1")
    assert (seen[0], seen[-1]) == ((True, made), (False, []))


def test_device_nodes_that_appear_a_moment_after_their_partition_are_waited_for(rig, monkeypatch):
    edits, missing = rig.hardware.device_edits, [1, 2, 3]

    def late(gpu, partition):
        if partition is not None and missing:
            missing.pop()
            raise HardwareError("node-missing", "MIG capability gpu0/gi1/access is not there")
        return edits(gpu, partition)

    monkeypatch.setattr(rig.hardware, "device_edits", late)
    assert rig.now_prepare("u1", small(3))
    rig.unprepare("u1")
    rig.assert_untouched()


def test_owners_are_found_without_reading_the_claims_of_whole_gpus(rig):
    rig.now_prepare("u1", small(3))
    rig.now_prepare("u2", OTHER)
    with sqlite3.connect(rig.ledger.path) as connection:
        connection.execute("UPDATE claims SET allocation = 'no JSON' WHERE uid = 'u2'")
    owners = rig.owners.of_ledger()
    assert owners.uuids == {rig.partitions()[0].uuid}
    assert owners.held == rig.owners.held() == {small(3), OTHER}
    assert owners.forms == {(small(3), False), (OTHER, False)}
