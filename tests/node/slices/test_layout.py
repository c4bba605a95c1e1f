import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.base.errors import ApiError
from dra_driver.node.slices.layout import lay_out
from tests.node.slices.support.slices import DRIVER, NODE, POOL, consumes, counter_set, device_wire, taint


def laid_out(devices, counter_sets=(), minor=36, placement=()):
    return lay_out(
        devices,
        pool=POOL,
        node=NODE,
        driver=DRIVER,
        server_minor=minor,
        counter_sets=counter_sets,
        placement=placement,
    )


def many(count, prefix="d", **fields):
    return [device_wire(f"{prefix}{i:04d}", **fields) for i in range(count)]


def names(spec):
    return [d["name"] for d in spec.devices]


def mig_gpu(index, partitions):
    """One GPU that can be partitioned: itself and its partitions consume one counter set."""
    taken = consumes(f"gpu-{index}", "memory", "engines")
    devices = [device_wire(f"gpu-{index}", consumesCounters=taken)]
    devices += [device_wire(f"gpu-{index}-mig-{n:02d}", consumesCounters=taken) for n in range(partitions)]
    return devices, counter_set(f"gpu-{index}", "memory", "engines")


def test_no_devices_are_one_slice_without_a_devices_key():
    (spec,) = laid_out([])
    wire = spec.wire(1, 1)
    assert wire == {
        "driver": DRIVER,
        "nodeName": NODE,
        "pool": {"name": POOL, "generation": 1, "resourceSliceCount": 1},
    }


@pytest.mark.parametrize(("count", "sizes"), [(1, [1]), (64, [64]), (65, [64, 1]), (150, [64, 64, 22])])
def test_a_slice_holds_64_devices(count, sizes):
    assert [len(s.devices) for s in laid_out(many(count))] == sizes


@pytest.mark.parametrize("minor", [34, 35, 36, 37, 0])
def test_a_slice_with_one_tainted_device_holds_64(minor):
    devices = [device_wire("a", taints=[taint()]), *many(70)]
    assert [len(s.devices) for s in laid_out(devices, minor=minor)] == [64, 7]


def test_devices_are_sorted_by_name_in_whatever_order_they_come():
    devices = many(200)
    assert laid_out(devices[::-1]) == laid_out(devices)
    assert names(laid_out(devices[::-1])[0]) == sorted(d["name"] for d in devices)[:64]


@pytest.mark.parametrize("minor", [35, 36, 37, 0])
def test_from_1_35_on_counters_are_in_slices_of_their_own_that_come_first(minor):
    devices, counters = mig_gpu(0, 4)
    specs = laid_out(devices, [counters], minor)
    assert [sorted(s.wire(1, 2).keys() & {"devices", "sharedCounters"}) for s in specs] == [
        ["sharedCounters"],
        ["devices"],
    ]


def test_from_1_35_on_a_slice_holds_8_counter_sets_and_each_gpu_has_its_own():
    gpus = [mig_gpu(i, 25) for i in range(9)]
    specs = laid_out([d for devices, _ in gpus for d in devices], [c for _, c in gpus], 36)
    assert [len(s.counter_sets) for s in specs if s.counter_sets] == [8, 1]
    assert [len(s.devices) for s in specs if s.devices] == [26] * 9


def test_more_than_64_devices_of_one_gpu_are_divided_into_slices_of_64():
    devices, counters = mig_gpu(0, 130)
    assert [len(s.devices) for s in laid_out(devices, [counters], 36)[1:]] == [64, 64, 3]


def test_in_1_34_partitions_are_in_the_slice_of_their_gpus_counters():
    gpus = [mig_gpu(i, 25) for i in range(3)]
    specs = laid_out([d for devices, _ in gpus for d in devices], [c for _, c in gpus], 34)
    assert [len(s.devices) for s in specs] == [52, 26]
    for spec in specs:
        assert {d["consumesCounters"][0]["counterSet"] for d in spec.devices} == {c["name"] for c in spec.counter_sets}


def test_in_1_34_a_slice_holds_32_counters():
    wide = [counter_set(f"set-{i}", *(f"c{n}" for n in range(20))) for i in range(3)]
    devices = [device_wire(f"d{i}", consumesCounters=consumes(f"set-{i}", "c1")) for i in range(3)]
    assert [len(s.counter_sets) for s in laid_out(devices, wide, 34)] == [1, 1, 1]


def test_in_1_34_two_sets_that_one_device_consumes_stay_together():
    both = consumes("a") + consumes("b")
    devices = [device_wire("x", consumesCounters=both), *many(60, consumesCounters=consumes("a"))]
    devices += many(3, "e", consumesCounters=consumes("b"))
    (spec,) = laid_out(devices, [counter_set("a"), counter_set("b")], 34)
    assert len(spec.counter_sets) == 2
    assert len(spec.devices) == 64


def test_in_1_34_a_group_that_fits_no_slice_is_an_error():
    with pytest.raises(ApiError) as caught:
        laid_out(many(65, consumesCounters=consumes("a")), [counter_set("a")], 34)
    assert caught.value.code == "api.pool-too-wide"


def test_a_removed_device_changes_only_its_slice():
    before = laid_out(many(300))
    after = laid_out([d for d in many(300) if d["name"] != "d0005"], placement=[s.keys for s in before])
    assert [a == b for a, b in zip(after, before, strict=True)] == [False, True, True, True, True]


def test_an_added_device_changes_only_one_slice():
    before = laid_out(many(300))
    after = laid_out([*many(300), device_wire("a-first")], placement=[s.keys for s in before])
    assert sum(a != b for a, b in zip(after, before, strict=True)) == 1


def test_slices_that_have_few_devices_left_are_merged():
    before = laid_out(many(64 * 5))
    after = laid_out(many(64 * 5)[::32], placement=[s.keys for s in before])
    assert [len(s.devices) for s in after] == [10]


KEYS = st.lists(st.integers(0, 400), unique=True, max_size=300)


@given(KEYS, st.sets(st.integers(0, 400), max_size=3), st.lists(st.lists(st.integers(0, 400)), max_size=5))
def test_every_device_is_in_exactly_one_slice_that_the_server_accepts(indexes, tainted, placement):
    devices = [device_wire(f"d{i}", **({"taints": [taint()]} if i in tainted else {})) for i in indexes]
    specs = laid_out(devices, placement=[[f"d{i}" for i in slot] for slot in placement])
    placed = [name for spec in specs for name in names(spec)]
    assert sorted(placed) == sorted(d["name"] for d in devices)
    for spec in specs:
        assert len(spec.devices) <= 64
        assert names(spec) == sorted(names(spec))
        assert spec.devices or len(specs) == 1


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=60),
    st.integers(0, 21),
    st.sampled_from([34, 35, 36, 0]),
)
def test_counters_are_in_the_slice_of_their_devices_in_1_34_and_never_in_it_later(pairs, sets, minor):
    counters = [counter_set(f"set-{i}") for i in range(21)]
    devices = [
        device_wire(f"d{n}", consumesCounters=consumes(f"set-{a}") + (consumes(f"set-{b}") if a != b else []))
        for n, (a, b) in enumerate(pairs)
    ]
    try:
        specs = laid_out(devices, counters, minor)
    except ApiError:
        assert minor == 34
        return
    assert sorted(c["name"] for s in specs for c in s.counter_sets) == sorted(c["name"] for c in counters)
    for spec in specs:
        if minor == 34:
            there = {c["name"] for c in spec.counter_sets}
            assert {c["counterSet"] for d in spec.devices for c in d["consumesCounters"]} <= there
        else:
            assert not (spec.devices and spec.counter_sets)
            assert len(spec.counter_sets) <= 8


@pytest.mark.parametrize("is_late", [False, True])
def test_standing_partitions_come_before_those_made_on_demand_even_when_added_later(is_late):
    on_demand, counters = mig_gpu(0, 3)
    standing = [device_wire("gpu-1-standing")]
    placement = [one.keys for one in laid_out(on_demand, [counters])] if is_late else ()
    specs = laid_out([*on_demand, *standing], [counters], placement=placement)
    assert [names(one) for one in specs] == [[], ["gpu-1-standing"], sorted(one["name"] for one in on_demand)]
