"""What follows from the results of all devices of a node, and which results still count for a later agent."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from dra_driver.node.devices.build import build_inventory
from dra_driver.node.devices.partitions import STATIC
from dra_driver.node.health.fault_record import HealthRecord
from dra_driver.node.health.faults import KnownGpus, Subject
from dra_driver.node.health.stored_health import GPUS, RECORD, HealthStore, record_wire
from dra_driver.node.health.validation import ValidationLevel, ValidationResult, ValidationVerdict
from dra_driver.node.health.validation_results import (
    NodeVerdicts,
    ValidationRecord,
    ValidationRecords,
    verdicts_of_node,
)
from dra_driver.node.health.validator import devices_to_test
from tests.support.facts import FULL_GPU, PARTITION, facts
from tests.support.kept_files import damage_all, locked, state_of

A, B = Subject("0000:1b:00.0"), Subject("0000:43:00.0")
PART = Subject("0000:1b:00.0", (19, 0))
GOOD, BAD, SERVED = (ValidationRecord("580", verdict, reason) for verdict, reason in
                     (("passed", ""), ("failed", "hang"), ("served", "")))  # fmt: skip
DRIVER, BOOT = "580.95.5", "1b4e28ba"
PASSED = ValidationResult(ValidationVerdict.PASSED, ValidationLevel.COMPUTE)


FAILED = ValidationResult(ValidationVerdict.FAILED, ValidationLevel.COMPUTE, "hang")


def test_a_failed_device_is_still_known_after_a_start_at_which_the_store_could_not_be_read(tmp_path):
    ValidationRecords(HealthStore(tmp_path), BOOT).add_result("GPU-1", DRIVER, FAILED)
    with locked(tmp_path / "state.db"):
        before = state_of(tmp_path)
        records = ValidationRecords(HealthStore(tmp_path), BOOT)
        assert not records.is_loaded
        records.begin(DRIVER)
        records.add_result("GPU-2", DRIVER, PASSED)
        assert state_of(tmp_path) == before
    records.add_result("GPU-2", DRIVER, PASSED)
    assert records.load()
    assert records.of("GPU-1", DRIVER).has_failed


def test_what_an_agent_records_until_the_next_one_takes_over_is_not_overwritten(tmp_path):
    old, new = (ValidationRecords(HealthStore(tmp_path), BOOT) for _ in range(2))
    old.add_result("GPU-1", DRIVER, FAILED)
    new.load()
    new.begin(DRIVER)
    assert ValidationRecords(HealthStore(tmp_path), BOOT).of("GPU-1", DRIVER).has_failed


def test_all_devices_are_tested_after_the_store_was_damaged_although_they_were_offered(tmp_path):
    store = HealthStore(tmp_path)
    damage_all(tmp_path, "health.db")
    store.set_aside()
    known = KnownGpus(lambda _: {})
    known.completed(facts(FULL_GPU))
    store.write({RECORD: record_wire(HealthRecord(BOOT)), GPUS: known.to_wire()})
    assert ValidationRecords(store, BOOT).of(FULL_GPU.uuid, DRIVER) is None


def test_one_bad_gpu_among_good_ones_has_failed():
    assert verdicts_of_node({A: BAD, B: GOOD}, []) == NodeVerdicts(failed={A: "hang"})
    assert verdicts_of_node({A: BAD, B: SERVED}, []) == NodeVerdicts(failed={A: "hang"})
    assert verdicts_of_node({A: BAD, B: None}, []) == NodeVerdicts(failed={A: "hang"}), "the other could not be tested"


def test_devices_are_withheld_while_all_that_were_tested_have_failed():
    assert verdicts_of_node({A: BAD, B: None}, [B]) == NodeVerdicts(frozenset([A, B]))


def test_the_node_is_at_fault_where_each_of_several_gpus_failed():
    assert verdicts_of_node({A: BAD, B: BAD}, []) == NodeVerdicts(is_node_at_fault=True)
    assert verdicts_of_node({A: BAD}, []) == NodeVerdicts(failed={A: "hang"})
    assert verdicts_of_node({PART: BAD, B: BAD}, []).is_node_at_fault


def test_what_passes_or_fails_while_others_are_tested_is_withheld_until_all_are_released():
    before = verdicts_of_node({A: None, B: None}, [A, B])
    for one in (GOOD, BAD):
        now = verdicts_of_node({A: one, B: None}, [B]).after(before, [A, B])
        assert now == NodeVerdicts(frozenset([A, B]))
    gone = verdicts_of_node({B: None}, [B]).after(before, [B])
    assert gone == NodeVerdicts(frozenset([B]))


@given(st.dictionaries(st.sampled_from([A, B, PART, Subject("0000:61:00.0")]), st.sampled_from([GOOD, BAD, SERVED])))
def test_no_good_device_is_ever_withheld(known):
    found = verdicts_of_node(known, [])
    assert found.withheld == frozenset()
    assert all(known[subject] is BAD for subject in found.failed)


def test_a_gpu_is_tested_as_a_whole_and_in_mig_mode_by_its_partitions(tmp_path):
    whole = devices_to_test(build_inventory(facts(FULL_GPU), STATIC))
    assert [one.uuid for one in whole] == [FULL_GPU.uuid]
    cut = replace(FULL_GPU, mig_enabled=True, partitions=(PARTITION,))
    (part,) = devices_to_test(build_inventory(facts(cut), STATIC))
    assert (part.uuid, part.subject) == (PARTITION.uuid, Subject(FULL_GPU.pci_address, (19, 2)))
    assert part.name in {device.name for device in build_inventory(facts(cut), STATIC).devices}
    assert devices_to_test(build_inventory(facts(replace(FULL_GPU, is_lost=True)), STATIC)) == ()


def test_a_result_counts_for_its_device_driver_and_boot_alone(tmp_path):
    records = ValidationRecords(HealthStore(tmp_path), BOOT)
    records.begin(DRIVER)
    assert records.is_empty
    records.add_result("GPU-1", DRIVER, PASSED)
    again = ValidationRecords(HealthStore(tmp_path), BOOT)
    assert again.of("GPU-1", DRIVER) is not None
    assert again.of("GPU-1", "590.1") is None
    assert again.of("GPU-2", DRIVER) is None
    assert ValidationRecords(HealthStore(tmp_path), "another boot").of("GPU-1", DRIVER) is None


def test_a_gpu_that_an_agent_without_tests_saw_in_this_boot_has_served(tmp_path):
    known = KnownGpus(lambda _: {})
    known.restore([FULL_GPU])
    store = HealthStore(tmp_path)
    store.write({RECORD: record_wire(HealthRecord(BOOT)), GPUS: known.to_wire()})
    records = ValidationRecords(store, BOOT)
    assert records.of(FULL_GPU.uuid, DRIVER).verdict == "served"
    records.begin(DRIVER)
    assert ValidationRecords(store, BOOT).of(FULL_GPU.uuid, DRIVER).verdict == "served"
    assert ValidationRecords(store, "another boot").of(FULL_GPU.uuid, DRIVER) is None
    later = ValidationRecords(store, BOOT)
    assert later.of("GPU-that-came-later", DRIVER) is None


def test_a_gpu_that_has_served_counts_even_if_the_agent_begins_before_it_reads_the_hardware(tmp_path):
    known = KnownGpus(lambda _: {})
    known.restore([FULL_GPU])
    store = HealthStore(tmp_path)
    store.write({RECORD: record_wire(HealthRecord(BOOT)), GPUS: known.to_wire()})
    first = ValidationRecords(store, BOOT)
    first.begin("")
    assert first.of(FULL_GPU.uuid, DRIVER).verdict == "served"
    killed_here = ValidationRecords(store, BOOT)
    assert killed_here.of(FULL_GPU.uuid, DRIVER).verdict == "served"
    killed_here.begin("")
    killed_here.set_driver(DRIVER)
    for records in (killed_here, ValidationRecords(store, BOOT)):
        assert records.of(FULL_GPU.uuid, DRIVER).verdict == "served"
        assert records.of(FULL_GPU.uuid, "590.1") is None
