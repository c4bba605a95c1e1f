"""The diff, on stored slices that only plans change; crashes are plans carried out in part."""

import copy

from hypothesis import given
from hypothesis import strategies as st

from dra_driver.node.slices.compare import differing_fields
from dra_driver.node.slices.layout import SliceSpec, generation_of, keys_of, lay_out, plan_writes
from tests.node.slices.support.slices import DRIVER, NODE, OWNER, POOL, SliceStore, device_wire, taint


def specs_of(*groups):
    """Return slices from groups of devices (names, or wire dicts)."""
    wires = [[device_wire(d) if isinstance(d, str) else d for d in group] for group in groups]
    return tuple(SliceSpec(DRIVER, NODE, POOL, tuple(group)) for group in wires)


def publish(store, desired, **options):
    plan = plan_writes(desired, store.all(), owner=OWNER, **options)
    store.run(plan)
    return plan


def kinds(plan):
    return len(plan.deletes), len(plan.updates), len(plan.creates)


def test_the_first_publication_has_generation_1_and_an_owner():
    store = SliceStore()
    plan = publish(store, specs_of(["a"], ["b"]))
    assert (kinds(plan), plan.generation) == ((0, 0, 2), 1)
    assert store.is_complete()
    assert all(s["metadata"]["ownerReferences"] == [OWNER] for s in store.slices.values())


def test_an_empty_pool_is_one_slice():
    store = SliceStore()
    publish(store, specs_of([]))
    assert store.is_complete()
    assert "devices" not in store.pool()[0]


def test_one_changed_device_is_one_put_of_one_slice_at_the_same_generation():
    store = SliceStore()
    publish(store, specs_of(["a", "b"], ["c"], ["d"]))
    changed = device_wire("c", attributes={"type": {"string": "other"}})
    plan = publish(store, specs_of(["a", "b"], [changed], ["d"]))
    assert (kinds(plan), plan.generation) == ((0, 1, 0), 1)
    assert store.devices()["c"]["attributes"] == {"type": {"string": "other"}}


def test_a_removed_or_added_device_is_one_put_too():
    store = SliceStore()
    publish(store, specs_of(["a", "b"], ["c", "d"]))
    assert kinds(publish(store, specs_of(["a", "b"], ["c"]))) == (0, 1, 0)
    assert kinds(publish(store, specs_of(["a", "b", "e"], ["c"]))) == (0, 1, 0)
    assert store.is_complete()


def test_two_changed_slices_raise_the_generation_of_all():
    store = SliceStore()
    publish(store, specs_of(["a"], ["b"], ["c"]))
    other = {"attributes": {"type": {"string": "other"}}}
    plan = publish(store, specs_of([device_wire("a", **other)], [device_wire("b", **other)], ["c"]))
    assert (kinds(plan), plan.generation) == ((0, 3, 0), 2)
    assert store.is_complete()


def test_a_new_slice_and_a_removed_slice_raise_the_generation():
    store = SliceStore()
    publish(store, specs_of(["a"]))
    assert kinds(publish(store, specs_of(["a"], ["b"]))) == (0, 1, 1)
    plan = publish(store, specs_of(["b"]))
    assert (kinds(plan), plan.generation) == ((1, 1, 0), 3)
    assert store.is_complete()


def test_names_of_objects_do_not_matter_after_a_restart():
    store = SliceStore()
    publish(store, specs_of(["a"], ["b"]))
    renamed = SliceStore()
    for index, stored in enumerate(reversed(list(store.slices.values()))):
        renamed.put({**stored, "metadata": {"ownerReferences": [OWNER]}}, name=f"node-gpu-{index}")
    assert len(publish(renamed, specs_of(["a"], ["b"]))) == 0


def test_slices_of_an_older_generation_are_removed():
    store = SliceStore()
    publish(store, specs_of(["a"]))
    current = store.all()[0]
    current["spec"]["pool"]["generation"] = 7
    store.put(current)
    leftover = copy.deepcopy(current)
    leftover["metadata"] = {"name": "leftover"}
    leftover["spec"]["pool"]["generation"] = 3
    store.put(leftover)
    plan = publish(store, specs_of(["a"]))
    assert (kinds(plan), plan.generation) == ((1, 0, 0), 7)
    assert store.is_complete()


def test_a_slice_that_was_created_twice_costs_one_delete():
    store = SliceStore()
    publish(store, specs_of(["a"]))
    second = store.all()[0]
    second["metadata"] = {"name": "second", "ownerReferences": [OWNER]}
    store.put(second)
    assert kinds(publish(store, specs_of(["a"]))) == (1, 0, 0)
    assert store.is_complete()


def test_our_slices_under_another_pool_name_are_removed_and_nobody_elses():
    store = SliceStore()
    publish(store, specs_of(["a"]))
    mine = store.all()[0]["spec"]
    for name, change in {
        "old-pool": {"pool": {**mine["pool"], "name": NODE}},
        "other-node": {"nodeName": "node-2"},
        "other-driver": {"driver": "gpu.example.com"},
        "everywhere": {"nodeName": None, "allNodes": True},
    }.items():
        store.put({"metadata": {"name": name}, "spec": {**mine, **change}})
    plan = publish(store, specs_of(["a"]))
    assert [s["metadata"]["name"] for s in plan.deletes] == ["old-pool"]
    assert kinds(plan) == (1, 0, 0)


def test_fields_that_others_added_to_a_slice_survive_our_update():
    store = SliceStore()
    publish(store, specs_of(["a"]))
    stored = store.all()[0]
    stored["metadata"].update(labels={"team": "x"}, finalizers=["example.com/f"])
    stored["metadata"]["ownerReferences"].append({"kind": "Other", "name": "o", "uid": "u"})
    stored["spec"]["brandNew"] = {"of": "a newer server"}
    stored["spec"]["pool"]["shard"] = 3
    stored["spec"]["devices"][0]["mood"] = "good"
    store.put(stored)
    assert len(plan_writes(specs_of(["a"]), store.all(), owner=OWNER)) == 0
    publish(store, specs_of([device_wire("a", attributes={}), "b"]))
    (after,) = store.all()
    assert after["metadata"]["labels"] == {"team": "x"}
    assert after["metadata"]["finalizers"] == ["example.com/f"]
    assert [r["kind"] for r in after["metadata"]["ownerReferences"]] == ["Node", "Other"]
    assert after["spec"]["brandNew"] == {"of": "a newer server"}
    assert after["spec"]["pool"]["shard"] == 3
    assert after["spec"]["devices"][0]["mood"] == "good"
    assert after["spec"]["devices"][0]["attributes"] == {}


def test_the_owner_with_the_uid_of_a_recreated_node_replaces_the_old_one():
    store = SliceStore()
    publish(store, specs_of(["a"]))
    newer = {**OWNER, "uid": "newer"}
    store.run(plan := plan_writes(specs_of(["a"]), store.all(), owner=newer))
    assert (kinds(plan), plan.generation) == ((0, 1, 0), 1)
    assert store.all()[0]["metadata"]["ownerReferences"] == [newer]


def test_the_time_of_a_taint_is_kept_even_in_another_slice():
    store = SliceStore()
    publish(store, specs_of([device_wire("a", taints=[taint()])], ["b"]))
    since = store.devices()["a"]["taints"][0]["timeAdded"]
    assert len(plan_writes(specs_of([device_wire("a", taints=[taint()])], ["b"]), store.all(), owner=OWNER)) == 0
    publish(store, specs_of(["b", device_wire("a", taints=[taint(), taint("new")])]))
    first, second = store.devices()["a"]["taints"]
    assert first["timeAdded"] == since
    assert second["timeAdded"] != since


def test_a_taint_with_another_effect_gets_a_new_time():
    store = SliceStore()
    publish(store, specs_of([device_wire("a", taints=[taint()])]))
    since = store.devices()["a"]["taints"][0]["timeAdded"]
    publish(store, specs_of([device_wire("a", taints=[taint(effect="NoSchedule")])]))
    assert store.devices()["a"]["taints"][0]["timeAdded"] != since


def test_a_pool_that_was_wiped_continues_its_generations():
    plan = plan_writes(specs_of(["a"]), [], owner=OWNER, least_generation=5)
    assert plan.generation == 5


def test_a_new_slice_is_named_by_its_place_driver_and_node():
    plan = plan_writes(specs_of(["a"], ["b"]), [])
    names = [c["metadata"]["generateName"] for c in plan.creates]
    assert names == [f"00000-{DRIVER}-{NODE}-", f"00001-{DRIVER}-{NODE}-"]


NAMES = st.integers(0, 30).map(lambda i: f"d{i}")
KINDS = st.sampled_from(["gpu", "mig"])
POOLS = st.dictionaries(NAMES, st.tuples(KINDS, st.booleans()), max_size=25)


def split(pool: dict, size: int) -> tuple[SliceSpec, ...]:
    """Divide a small pool into small slices, as the layout does with large ones."""
    wires = [
        device_wire(name, attributes={"type": {"string": kind}}, **({"taints": [taint()]} if bad else {}))
        for name, (kind, bad) in sorted(pool.items())
    ]
    chunks = [wires[i : i + size] for i in range(0, len(wires), size)] or [[]]
    return tuple(SliceSpec(DRIVER, NODE, POOL, tuple(chunk)) for chunk in chunks)


def holds(store: SliceStore, desired) -> bool:
    want = {d["name"]: d for spec in desired for d in spec.devices}
    have = store.devices()
    return want.keys() == have.keys() and all(
        not differing_fields({"pool": {}, "devices": [want[n]]}, {"pool": {}, "devices": [have[n]]}) for n in want
    )


@given(st.lists(st.tuples(POOLS, st.integers(1, 6), st.one_of(st.none(), st.integers(0, 4))), max_size=6), POOLS)
def test_any_history_of_pools_and_crashes_ends_in_the_wanted_pool(history, last):
    store = SliceStore()
    for pool, size, maximum in history:
        store.run(plan_writes(split(pool, size), store.all(), owner=OWNER), maximum=maximum)
    desired = split(last, 4)
    before = max((generation_of(s) for s in store.all()), default=0)
    plan = plan_writes(desired, store.all(), owner=OWNER)
    store.run(plan)
    assert holds(store, desired)
    assert store.is_complete()
    assert plan.generation >= before
    assert len(plan_writes(desired, store.all(), owner=OWNER)) == 0


@given(POOLS.filter(bool), st.integers(1, 6), st.data())
def test_one_changed_device_is_always_exactly_one_put(pool, size, data):
    store = SliceStore()
    store.run(plan_writes(split(pool, size), store.all(), owner=OWNER))
    name = data.draw(st.sampled_from(sorted(pool)))
    kind, bad = pool[name]
    changed = {**pool, name: ("mig" if kind == "gpu" else "gpu", bad)}
    plan = plan_writes(split(changed, size), store.all(), owner=OWNER)
    assert kinds(plan) == (0, 1, 0)


@given(POOLS.filter(bool), st.data())
def test_with_the_layout_one_lost_device_is_one_write(pool, data):
    devices = [device_wire(name) for name in sorted(pool)]

    def wanted(some, placement):
        return lay_out(some, pool=POOL, node=NODE, driver=DRIVER, server_minor=36, placement=placement)

    store = SliceStore()
    store.run(plan_writes(wanted(devices, ()), store.all(), owner=OWNER))
    lost = data.draw(st.sampled_from(devices))
    rest = [d for d in devices if d is not lost]
    plan = plan_writes(wanted(rest, [keys_of(s) for s in store.all()]), store.all(), owner=OWNER)
    assert kinds(plan) == (0, 1, 0)


@given(POOLS, st.integers(1, 6), st.randoms(use_true_random=False))
def test_the_order_in_which_slices_are_listed_does_not_matter(pool, size, random):
    store = SliceStore()
    store.run(plan_writes(split(pool, size), store.all(), owner=OWNER))
    shuffled = store.all()
    random.shuffle(shuffled)
    assert len(plan_writes(split(pool, size), shuffled, owner=OWNER)) == 0


@given(POOLS, POOLS, st.integers(1, 6))
def test_between_two_writes_no_older_generation_is_complete_with_other_devices(pool, after, size):
    """The scheduler uses the newest generation if complete; a half-written pool must not look complete."""
    store = SliceStore()
    store.run(plan_writes(split(pool, size), store.all(), owner=OWNER))
    desired = split(after, size)
    plan = plan_writes(desired, store.all(), owner=OWNER)
    for maximum in range(len(plan)):
        half = SliceStore()
        half.slices = {s["metadata"]["name"]: s for s in store.all()}
        half.run(plan, maximum=maximum)
        newest = max((generation_of(s) for s in half.all()), default=0)
        visible = [s["spec"] for s in half.all() if generation_of(s) == newest]
        if visible and len(visible) == visible[0]["pool"]["resourceSliceCount"]:
            names = sorted(d["name"] for spec in visible for d in spec.get("devices", ()))
            assert names in (sorted(pool), sorted(after))
