import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.hardware.evidence import BusState, Source
from dra_driver.node.health.fault_record import HealthRecord
from dra_driver.node.health.faults import FaultKey, Subject
from dra_driver.node.health.stored_health import read_record, record_wire
from dra_driver.node.health.xids import FaultTrack, Indication
from tests.node.health.support.parts import BOOT, KNOWN, ONE, TWO, gpu, partition, reading, report, shown, xid


def fed(*reports, known=KNOWN):
    record = HealthRecord(BOOT)
    for number, one in enumerate(reports):
        record.add_report(one, known, 100.0 + number)
    return record


def test_the_recovery_action_overrides_the_table_of_xids():
    record = fed(report(xid(48, 100), reading(101, recovery_action=0)))
    assert not record.faults(102)
    record = fed(report(xid(48, 100), reading(101, recovery_action=2)))
    assert shown(record.faults(102)) == {("needs-reboot", "node-reboot"), ("xid", "48")}


def test_the_table_decides_where_the_driver_reports_no_action():
    record = fed(report(xid(48, 100), reading(101)))
    assert shown(record.faults(102)) == {("needs-reset", "xid-48"), ("xid", "48")}


def test_an_action_read_before_an_xid_says_nothing_about_it():
    record = fed(report(reading(99, recovery_action=0)), report(xid(95, 100)))
    assert shown(record.faults(101)) == {("needs-reset", "xid-95"), ("xid", "95")}
    record.add_report(report(reading(110, recovery_action=0)), KNOWN, 110)
    assert not record.faults(111)


@pytest.mark.parametrize("code", [13, 31, 43, 45, 63, 94])
def test_an_application_s_xid_is_no_fault_but_is_counted(code):
    record = fed(*(report(xid(code, 100 + n)) for n in range(20)))
    assert not record.faults(200)
    assert record.xids[Subject(ONE), code].count == 20


def test_two_sources_of_one_xid_are_counted_once():
    record = fed(report(xid(95, 100.2)), report(xid(95, 100.0, source=Source.KERNEL_LOG)))
    (found,) = (fault for fault in record.faults(101) if fault.key is FaultKey.XID)
    assert (found.count, found.since) == (1, 100.0)


def test_an_xid_with_an_instance_is_about_its_partition():
    known = {ONE: gpu(ONE, partitions=(partition(3, start=2), partition(4, start=3)))}
    record = fed(report(xid(95, gi_id=4)), known=known)
    assert {fault.subject for fault in record.faults(101)} == {Subject(ONE, (19, 3))}


def test_a_gpu_that_left_the_bus_is_lost_and_another_gpu_is_not():
    record = fed(report(bus=((ONE, BusState.DEAD), (TWO, BusState.HERE))))
    assert [(fault.key, fault.subject.gpu) for fault in record.faults(101)] == [(FaultKey.GPU_LOST, ONE)]


def test_the_most_important_fault_comes_first_whichever_gpu_has_it():
    record = fed(report(xid(48, 100), reading(101, ecc_uncorrectable=2), bus=((TWO, BusState.DEAD),)))
    assert [(str(fault.key), fault.subject.gpu) for fault in record.faults(102)] == [
        ("gpu-lost", TWO),
        ("needs-reset", ONE),
        ("xid", ONE),
        ("ecc-uncorrectable", ONE),
    ]


def test_a_lost_gpu_is_back_after_three_good_readings_with_its_uuid():
    record = fed(report(reading(100, uuid="", is_lost=True)), report(reading(110)), report(reading(120)))
    assert shown(record.faults(121)) == {("gpu-lost", "")}
    record.add_report(report(reading(125, uuid="GPU-another")), KNOWN, 125)
    assert shown(record.faults(126)) == {("gpu-lost", "")}
    record.add_report(report(reading(130)), KNOWN, 130)
    assert not record.faults(131)


def test_an_unknown_recovery_action_needs_attention():
    record = fed(report(reading(100, recovery_action=42)))
    assert shown(record.faults(101)) == {("needs-attention", "action-42")}


def test_the_worst_xid_is_shown_and_not_the_newest():
    record = fed(report(xid(62, 100), xid(151, 101), xid(119, 102)))
    assert ("xid", "151") in shown(record.faults(103))


def test_a_link_is_a_fault_after_two_bad_readings_and_not_after_one():
    up, down = (True, True), (True, False)
    record = fed(report(reading(100, links=up)), report(reading(110, links=down)))
    assert not record.faults(111)
    assert record.has_suspicion
    record.add_report(report(reading(112, links=down)), KNOWN, 112)
    (found,) = record.faults(113)
    assert (found.key, found.value, found.since) == (FaultKey.NVLINK, "link-1", 110)


def test_a_link_that_was_never_up_is_no_fault():
    assert not fed(*(report(reading(100 + n, links=(True, False))) for n in range(5))).faults(110)


def test_a_gpu_that_is_just_below_the_limit_stays_hot():
    hot = [report(reading(100 + n, thermal_margin=-3, slowdown_margin=-2)) for n in range(2)]
    record = fed(*hot, *(report(reading(110 + n, thermal_margin=0, slowdown_margin=-2)) for n in range(9)))
    assert shown(record.faults(120)) == {("thermal", "")}
    for at in range(3):
        record.add_report(report(reading(130 + at, thermal_margin=1, slowdown_margin=-2)), KNOWN, 130 + at)
    assert not record.faults(140)


def test_a_flapping_fault_ends_only_after_ten_calm_minutes():
    track, at = FaultTrack(FaultKey.ROW_REMAP_PENDING), 0.0
    for _ in range(3):
        for is_bad in (True, False, False, False):
            at += 10
            track = track.after(Indication(FaultKey.ROW_REMAP_PENDING, is_bad), at)
    assert track.is_raised
    assert track.is_flapping(at)
    while track.is_raised:
        at += 10
        track = track.after(Indication(FaultKey.ROW_REMAP_PENDING, is_bad=False), at)
    assert at - track.last_bad == 600


def test_uncorrectable_errors_that_need_no_action_are_mild():
    (found,) = fed(report(reading(100, ecc_uncorrectable=2, recovery_action=0))).faults(101)
    assert (found.key, found.is_mild) == (FaultKey.ECC_UNCORRECTABLE, True)
    (found,) = fed(report(reading(100, ecc_uncorrectable=2))).faults(101)
    assert not found.is_mild


def test_a_reboot_ends_all_faults_except_one_that_needs_a_new_gpu():
    record = fed(report(xid(95), reading(100, remap_failed=True, recovery_action=1)))
    assert shown(record.in_boot("another").faults(200)) == {("row-remap-failed", "")}
    assert record.in_boot(BOOT) is record


def test_reloading_the_driver_ends_the_faults_of_earlier_xids():
    assert not fed(report(xid(95)), report(is_driver_new=True)).faults(200)


def test_a_record_is_read_back_unchanged_and_an_incomplete_one_is_refused():
    record = fed(report(xid(95), xid(13, source=Source.KERNEL_LOG), reading(100, links=(True,), pcie_replays=4)))
    assert read_record(record_wire(record)) == record
    with pytest.raises(ValueError, match="not a record"):
        read_record({"boot": BOOT})


EVIDENCE = [
    *(
        xid(code, 100.0 + code / 1000, address, source)
        for code in (13, 48, 79, 95)
        for address in (ONE, TWO)
        for source in Source
    ),
    reading(101.0, recovery_action=1, remap_pending=True),
    reading(101.0, TWO, ecc_uncorrectable=3),
]


@given(st.randoms(use_true_random=False))
def test_independent_sources_in_any_order_give_the_same_faults(chance: random.Random):
    order = EVIDENCE[:]
    chance.shuffle(order)
    expected = fed(report(*EVIDENCE)).faults(110)
    assert fed(*map(report, order)).faults(110) == expected
    count = chance.randrange(len(order))
    assert fed(report(*order[:count]), report(*order[count:])).faults(110) == expected
