import pytest

from dra_driver.node.slices.compare import PoolContent, find_faults
from tests.node.slices.support.slices import consumes, counter_set, device_wire, taint


def faults(devices=(), counter_sets=(), minor=36):
    return find_faults(PoolContent(tuple(devices), tuple(counter_sets)), server_minor=minor)


def test_a_valid_pool_has_no_faults():
    assert faults([device_wire("a", consumesCounters=consumes("s"), taints=[taint()])], [counter_set("s")]) == ()


@pytest.mark.parametrize(
    ("devices", "counter_sets", "minor", "fragment"),
    [
        ([device_wire("a"), device_wire("a")], [], 36, "device 'a' occurs 2 times"),
        ([device_wire("a.b")], [], 36, "'a.b' is not a DNS label"),
        ([device_wire("a", attributes={f"x{i}": {"int": i} for i in range(32)})], [], 36, "has 33 attributes"),
        ([device_wire("a", taints=[taint(f"k{i}") for i in range(17)])], [], 36, "17 taints, at most 16"),
        ([device_wire("a", taints=[taint(f"k{i}") for i in range(5)])], [], 34, "5 taints, at most 4"),
        ([device_wire("a", consumesCounters=consumes("s"))], [], 36, "consumes from counter set 's', which is missing"),
        ([device_wire("a", consumesCounters=consumes("s", "x"))], [counter_set("s")], 36, "does not have: ['x']"),
        ([], [counter_set("s"), counter_set("s")], 36, "counter set 's' occurs 2 times"),
        ([], [{"name": "s", "counters": {}}], 36, "has 0 counters"),
    ],
)
def test_each_fault_is_named(devices, counter_sets, minor, fragment):
    (fault,) = faults(devices, counter_sets, minor)
    assert fragment in fault


def test_three_consumptions_are_too_many_from_1_35_on():
    sets = [counter_set(name) for name in "abc"]
    device = device_wire("d", consumesCounters=consumes("a") + consumes("b") + consumes("c"))
    assert faults([device], sets, 34) == ()
    assert "3 counter sets" in faults([device], sets, 35)[0]
