"""The diff, on a shelf that is changed by plans alone; crashes are plans carried out in part."""

import copy

from hypothesis import given
from hypothesis import strategies as st

from dra_driver.controller.compare import differing_fields
from dra_driver.controller.diff import generation_of, keys_of, plan_writes
from dra_driver.controller.layout import SliceSpec, lay_out
from tests.controller.support.slices import DRIVER, NODE, OWNER, POOL, Shelf, device_wire, taint


def specs_of(*groups):
    """Return slices from groups of devices (names, or wire dicts)."""
    wires = [[device_wire(d) if isinstance(d, str) else d for d in group] for group in groups]
    return tuple(SliceSpec(DRIVER, NODE, POOL, tuple(group)) for group in wires)


def publish(shelf, desired, **options):
    plan = plan_writes(desired, shelf.all(), owner=OWNER, **options)
    shelf.run(plan)
    return plan


def kinds(plan):
    return len(plan.deletes), len(plan.updates), len(plan.creates)


def test_the_first_publication_has_generation_1_and_an_owner():
    shelf = Shelf()
    plan = publish(shelf, specs_of(["a"], ["b"]))
    assert (kinds(plan), plan.generation) == ((0, 0, 2), 1)
    assert shelf.is_complete()
    assert all(s["metadata"]["ownerReferences"] == [OWNER] for s in shelf.slices.values())


def test_an_empty_pool_is_one_slice():
    shelf = Shelf()
    publish(shelf, specs_of([]))
    assert shelf.is_complete()
    assert "devices" not in shelf.pool()[0]


def test_one_changed_device_is_one_put_of_one_slice_at_the_same_generation():
    shelf = Shelf()
    publish(shelf, specs_of(["a", "b"], ["c"], ["d"]))
    changed = device_wire("c", attributes={"type": {"string": "other"}})
    plan = publish(shelf, specs_of(["a", "b"], [changed], ["d"]))
    assert (kinds(plan), plan.generation) == ((0, 1, 0), 1)
    assert shelf.devices()["c"]["attributes"] == {"type": {"string": "other"}}


def test_a_device_that_left_or_came_is_one_put_too():
    shelf = Shelf()
    publish(shelf, specs_of(["a", "b"], ["c", "d"]))
    assert kinds(publish(shelf, specs_of(["a", "b"], ["c"]))) == (0, 1, 0)
    assert kinds(publish(shelf, specs_of(["a", "b", "e"], ["c"]))) == (0, 1, 0)
    assert shelf.is_complete()


def test_two_changed_slices_raise_the_generation_of_all():
    shelf = Shelf()
    publish(shelf, specs_of(["a"], ["b"], ["c"]))
    other = {"attributes": {"type": {"string": "other"}}}
    plan = publish(shelf, specs_of([device_wire("a", **other)], [device_wire("b", **other)], ["c"]))
    assert (kinds(plan), plan.generation) == ((0, 3, 0), 2)
    assert shelf.is_complete()


def test_a_new_slice_and_a_removed_slice_raise_the_generation():
    shelf = Shelf()
    publish(shelf, specs_of(["a"]))
    assert kinds(publish(shelf, specs_of(["a"], ["b"]))) == (0, 1, 1)
    plan = publish(shelf, specs_of(["b"]))
    assert (kinds(plan), plan.generation) == ((1, 1, 0), 3)
    assert shelf.is_complete()


def test_names_of_objects_mean_nothing_after_a_restart():
    shelf = Shelf()
    publish(shelf, specs_of(["a"], ["b"]))
    renamed = Shelf()
    for index, stored in enumerate(reversed(list(shelf.slices.values()))):
        renamed.put({**stored, "metadata": {"ownerReferences": [OWNER]}}, name=f"node-gpu-{index}")
    assert len(publish(renamed, specs_of(["a"], ["b"]))) == 0


def test_slices_of_an_older_generation_are_taken_up_or_removed():
    shelf = Shelf()
    publish(shelf, specs_of(["a"]))
    current = shelf.all()[0]
    current["spec"]["pool"]["generation"] = 7
    shelf.put(current)
    leftover = copy.deepcopy(current)
    leftover["metadata"] = {"name": "leftover"}
    leftover["spec"]["pool"]["generation"] = 3
    shelf.put(leftover)
    plan = publish(shelf, specs_of(["a"]))
    assert (kinds(plan), plan.generation) == ((1, 0, 0), 7)
    assert shelf.is_complete()


def test_a_slice_that_was_created_twice_costs_one_delete():
    shelf = Shelf()
    publish(shelf, specs_of(["a"]))
    twin = shelf.all()[0]
    twin["metadata"] = {"name": "twin", "ownerReferences": [OWNER]}
    shelf.put(twin)
    assert kinds(publish(shelf, specs_of(["a"]))) == (1, 0, 0)
    assert shelf.is_complete()


def test_our_slices_under_another_pool_name_are_removed_and_nobody_elses():
    shelf = Shelf()
    publish(shelf, specs_of(["a"]))
    mine = shelf.all()[0]["spec"]
    for name, change in {
        "old-pool": {"pool": {**mine["pool"], "name": NODE}},
        "other-node": {"nodeName": "node-2"},
        "other-driver": {"driver": "gpu.example.com"},
        "everywhere": {"nodeName": None, "allNodes": True},
    }.items():
        shelf.put({"metadata": {"name": name}, "spec": {**mine, **change}})
    plan = publish(shelf, specs_of(["a"]))
    assert [s["metadata"]["name"] for s in plan.deletes] == ["old-pool"]
    assert kinds(plan) == (1, 0, 0)


def test_what_others_put_into_a_slice_survives_our_update():
    shelf = Shelf()
    publish(shelf, specs_of(["a"]))
    stored = shelf.all()[0]
    stored["metadata"].update(labels={"team": "x"}, finalizers=["example.com/f"])
    stored["metadata"]["ownerReferences"].append({"kind": "Other", "name": "o", "uid": "u"})
    stored["spec"]["brandNew"] = {"of": "a newer server"}
    stored["spec"]["pool"]["shard"] = 3
    stored["spec"]["devices"][0]["mood"] = "good"
    shelf.put(stored)
    assert len(plan_writes(specs_of(["a"]), shelf.all(), owner=OWNER)) == 0
    publish(shelf, specs_of([device_wire("a", attributes={}), "b"]))
    (after,) = shelf.all()
    assert after["metadata"]["labels"] == {"team": "x"}
    assert after["metadata"]["finalizers"] == ["example.com/f"]
    assert [r["kind"] for r in after["metadata"]["ownerReferences"]] == ["Node", "Other"]
    assert after["spec"]["brandNew"] == {"of": "a newer server"}
    assert after["spec"]["pool"]["shard"] == 3
    assert after["spec"]["devices"][0]["mood"] == "good"
    assert after["spec"]["devices"][0]["attributes"] == {}


def test_the_owner_of_a_node_made_anew_replaces_the_old_one():
    shelf = Shelf()
    publish(shelf, specs_of(["a"]))
    newer = {**OWNER, "uid": "newer"}
    shelf.run(plan := plan_writes(specs_of(["a"]), shelf.all(), owner=newer))
    assert (kinds(plan), plan.generation) == ((0, 1, 0), 1)
    assert shelf.all()[0]["metadata"]["ownerReferences"] == [newer]


def test_the_time_of_a_taint_is_carried_over_also_into_another_slice():
    shelf = Shelf()
    publish(shelf, specs_of([device_wire("a", taints=[taint()])], ["b"]))
    since = shelf.devices()["a"]["taints"][0]["timeAdded"]
    assert len(plan_writes(specs_of([device_wire("a", taints=[taint()])], ["b"]), shelf.all(), owner=OWNER)) == 0
    publish(shelf, specs_of(["b", device_wire("a", taints=[taint(), taint("new")])]))
    first, second = shelf.devices()["a"]["taints"]
    assert first["timeAdded"] == since
    assert second["timeAdded"] != since


def test_a_taint_with_another_effect_begins_anew():
    shelf = Shelf()
    publish(shelf, specs_of([device_wire("a", taints=[taint()])]))
    since = shelf.devices()["a"]["taints"][0]["timeAdded"]
    publish(shelf, specs_of([device_wire("a", taints=[taint(effect="NoSchedule")])]))
    assert shelf.devices()["a"]["taints"][0]["timeAdded"] != since


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


def cut(pool: dict, size: int) -> tuple[SliceSpec, ...]:
    """Divide a small pool into small slices, as the layout does with large ones."""
    wires = [
        device_wire(name, attributes={"type": {"string": kind}}, **({"taints": [taint()]} if bad else {}))
        for name, (kind, bad) in sorted(pool.items())
    ]
    chunks = [wires[i : i + size] for i in range(0, len(wires), size)] or [[]]
    return tuple(SliceSpec(DRIVER, NODE, POOL, tuple(chunk)) for chunk in chunks)


def holds(shelf: Shelf, desired) -> bool:
    want = {d["name"]: d for spec in desired for d in spec.devices}
    have = shelf.devices()
    return want.keys() == have.keys() and all(
        not differing_fields({"pool": {}, "devices": [want[n]]}, {"pool": {}, "devices": [have[n]]}) for n in want
    )


@given(st.lists(st.tuples(POOLS, st.integers(1, 6), st.one_of(st.none(), st.integers(0, 4))), max_size=6), POOLS)
def test_any_history_of_pools_and_crashes_ends_in_the_wanted_pool(history, last):
    shelf = Shelf()
    for pool, size, most in history:
        shelf.run(plan_writes(cut(pool, size), shelf.all(), owner=OWNER), most=most)
    desired = cut(last, 4)
    before = max((generation_of(s) for s in shelf.all()), default=0)
    plan = plan_writes(desired, shelf.all(), owner=OWNER)
    shelf.run(plan)
    assert holds(shelf, desired)
    assert shelf.is_complete()
    assert plan.generation >= before
    assert len(plan_writes(desired, shelf.all(), owner=OWNER)) == 0


@given(POOLS.filter(bool), st.integers(1, 6), st.data())
def test_one_changed_device_is_always_exactly_one_put(pool, size, data):
    shelf = Shelf()
    shelf.run(plan_writes(cut(pool, size), shelf.all(), owner=OWNER))
    name = data.draw(st.sampled_from(sorted(pool)))
    kind, bad = pool[name]
    changed = {**pool, name: ("mig" if kind == "gpu" else "gpu", bad)}
    plan = plan_writes(cut(changed, size), shelf.all(), owner=OWNER)
    assert kinds(plan) == (0, 1, 0)


@given(POOLS.filter(bool), st.data())
def test_with_the_layout_one_lost_device_is_one_write(pool, data):
    devices = [device_wire(name) for name in sorted(pool)]

    def wanted(some, placement):
        return lay_out(some, pool=POOL, node=NODE, driver=DRIVER, server_minor=36, placement=placement)

    shelf = Shelf()
    shelf.run(plan_writes(wanted(devices, ()), shelf.all(), owner=OWNER))
    lost = data.draw(st.sampled_from(devices))
    rest = [d for d in devices if d is not lost]
    plan = plan_writes(wanted(rest, [keys_of(s) for s in shelf.all()]), shelf.all(), owner=OWNER)
    assert kinds(plan) == (0, 1, 0)


@given(POOLS, st.integers(1, 6), st.randoms(use_true_random=False))
def test_the_order_in_which_slices_are_listed_does_not_matter(pool, size, random):
    shelf = Shelf()
    shelf.run(plan_writes(cut(pool, size), shelf.all(), owner=OWNER))
    shuffled = shelf.all()
    random.shuffle(shuffled)
    assert len(plan_writes(cut(pool, size), shuffled, owner=OWNER)) == 0


@given(POOLS, POOLS, st.integers(1, 6))
def test_between_two_writes_no_older_generation_is_complete_with_other_devices(pool, after, size):
    """The scheduler uses the newest generation if complete; a half-written pool must not look whole."""
    shelf = Shelf()
    shelf.run(plan_writes(cut(pool, size), shelf.all(), owner=OWNER))
    desired = cut(after, size)
    plan = plan_writes(desired, shelf.all(), owner=OWNER)
    for most in range(len(plan)):
        half = Shelf()
        half.slices = {s["metadata"]["name"]: s for s in shelf.all()}
        half.run(plan, most=most)
        newest = max((generation_of(s) for s in half.all()), default=0)
        visible = [s["spec"] for s in half.all() if generation_of(s) == newest]
        if visible and len(visible) == visible[0]["pool"]["resourceSliceCount"]:
            names = sorted(d["name"] for spec in visible for d in spec.get("devices", ()))
            assert names in (sorted(pool), sorted(after))
