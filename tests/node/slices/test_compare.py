import pytest

from dra_driver.node.slices.compare import differing_fields, gates_behind
from dra_driver.node.slices.layout import SliceSpec
from tests.node.slices.support.slices import DRIVER, NODE, POOL, consumes, counter_set, device_wire, taint


def spec(*devices, counter_sets=(), generation=1, count=1):
    return SliceSpec(DRIVER, NODE, POOL, devices, counter_sets).wire(generation, count)


def differing(ours, theirs):
    return sorted(differing_fields(spec(ours), spec(theirs)))


def test_equal_specs_do_not_differ():
    assert differing_fields(spec(device_wire("a")), spec(device_wire("a"))) == frozenset()


@pytest.mark.parametrize("other", ["81920Mi", "85899345920", "80.0Gi", "85899345920000m"])
def test_quantities_are_compared_by_value(other):
    assert differing(device_wire("a"), device_wire("a", capacity={"memory": {"value": other}})) == []


def test_a_quantity_that_is_another_number_differs():
    assert differing(device_wire("a"), device_wire("a", capacity={"memory": {"value": "80G"}})) == ["devices.capacity"]


def test_counters_are_quantities_too():
    ours = device_wire("a", consumesCounters=[{"counterSet": "s", "counters": {"m": {"value": "1Gi"}}}])
    theirs = device_wire("a", consumesCounters=[{"counterSet": "s", "counters": {"m": {"value": "1024Mi"}}}])
    assert differing(ours, theirs) == []
    one, two = counter_set("s", "m"), {"name": "s", "counters": {"m": {"value": "8000m"}}}
    assert differing_fields(spec(counter_sets=(one,)), spec(counter_sets=(two,))) == frozenset()


def test_a_taint_without_a_time_equals_one_with_any_time():
    ours, theirs = (device_wire("a", taints=[taint(**t)]) for t in ({}, {"timeAdded": "2026-01-01T00:00:00Z"}))
    assert differing(ours, theirs) == []


@pytest.mark.parametrize(("theirs", "same"), [("12:00:01Z", True), ("12:00:02Z", False), ("12:00:00+00:00", True)])
def test_a_given_time_of_a_taint_may_be_a_second_off(theirs, same):
    ours = device_wire("a", taints=[taint(timeAdded="2026-01-01T12:00:00Z")])
    stored = device_wire("a", taints=[taint(timeAdded=f"2026-01-01T{theirs}")])
    assert (differing(ours, stored) == []) is same


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"attributes": {"type": {"string": "mig"}}}, "devices.attributes"),
        ({"attributes": {"type": {"string": "gpu"}, "more": {"int": 1}}}, "devices.attributes"),
        ({"taints": [taint()]}, "devices.taints"),
        ({"consumesCounters": consumes("a")}, "devices.consumesCounters"),
        ({"allowMultipleAllocations": True}, "devices.allowMultipleAllocations"),
        ({"bindsToNode": True}, "devices.bindsToNode"),
    ],
)
def test_each_field_that_differs_is_named_in_both_directions(change, field):
    plain, changed = device_wire("a"), {**device_wire("a"), **change}
    assert differing(plain, changed) == [field]
    assert differing(changed, plain) == [field]


@pytest.mark.parametrize("change", [{"taints": []}, {"consumesCounters": None}, {"capacity2026": {"new": "field"}}])
def test_empty_and_unknown_fields_never_differ(change):
    assert differing(device_wire("a"), device_wire("a", **change)) == []


def test_other_devices_or_another_order_differ():
    a, b = device_wire("a"), device_wire("b")
    assert differing_fields(spec(a, b), spec(b, a)) == {"devices"}
    assert differing_fields(spec(a), spec(a, b)) == {"devices"}


def test_generation_and_count_differ_as_pool():
    assert differing_fields(spec(generation=1), spec(generation=2)) == {"pool"}
    assert differing_fields(spec(count=1), spec(count=2)) == {"pool"}


def test_an_unreadable_quantity_is_compared_as_text():
    odd = device_wire("a", capacity={"memory": {"value": "lots"}})
    assert differing(odd, odd | {}) == []
    assert differing(device_wire("a"), odd) == ["devices.capacity"]


def test_gates_are_named_once():
    assert gates_behind(["sharedCounters", "devices.consumesCounters", "devices.taints", "pool"]) == (
        "DRADeviceTaints",
        "DRAPartitionableDevices",
    )
