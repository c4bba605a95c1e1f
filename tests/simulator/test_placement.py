"""The scheduler's step: which devices a claim gets, in which order, and the text of a refusal."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.simulator.scheduler import place

DRIVER, POOL = "gpu.example.com", "n1/gpu.example.com"
CLASSES = {
    "gpu": {"spec": {"selectors": [{"cel": {"expression": 'device.driver == "gpu.example.com"'}}]}},
    "any": {"spec": {}},
    "nic": {"spec": {"selectors": [{"cel": {"expression": 'device.driver == "nic.example.com"'}}]}},
}


def slice_of(*devices, name="s", node="n1", driver=DRIVER, generation=1, count=1, **more):
    pool = {"name": f"{node}/{driver}", "generation": generation, "resourceSliceCount": count}
    where = {"nodeName": node} if node else {"allNodes": True}
    return {
        "metadata": {"name": name},
        "spec": {"driver": driver, "pool": pool, **where, "devices": list(devices), **more},
    }


def device(name, **attributes):
    return {
        "name": name,
        "attributes": {k: {"int" if isinstance(v, int) else "string": v} for k, v in attributes.items()},
    }


def exactly(class_name="gpu", *, selector="", mode="ExactCount", **more):
    made = {"deviceClassName": class_name, "allocationMode": mode, **more}
    if mode == "ExactCount":
        made.setdefault("count", 1)
    if selector:
        made["selectors"] = [{"cel": {"expression": selector}}]
    return made


def claim(*requests, **devices):
    return {"metadata": {"name": "c"}, "spec": {"devices": {"requests": list(requests), **devices}}}


def request(name="r", **more):
    return {"name": name, "exactly": exactly(**more)}


def fit(wire, slices, in_use=(), classes=CLASSES):
    results = [{"request": "x", "driver": DRIVER, "pool": POOL, "device": name} for name in in_use]
    held = {"metadata": {"name": "other"}, "status": {"allocation": {"devices": {"results": results}}}}
    named = [{"metadata": {"name": name}, **body} for name, body in classes.items()]
    [outcome] = place([wire], slices=slices, classes=named, held=[held], node="n1", kubernetes="1.36")
    return outcome


def taken(outcome):
    assert outcome.allocation, outcome.refusal
    return [result["device"] for result in outcome.allocation["devices"]["results"]]


def test_the_first_free_device_is_taken_and_the_reason_has_the_numbers():
    outcome = fit(claim(request()), [slice_of(device("a"), device("b"))], in_use=["a"])
    assert taken(outcome) == ["b"]
    assert outcome.choices[0].reason == "first that fits (2 devices here, 2 of class gpu, 1 held by other claims)"
    assert outcome.allocation["nodeSelector"] == {
        "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]
    }


def test_an_allocation_of_a_device_for_all_nodes_has_no_node_selector():
    outcome = fit(claim(request()), [slice_of(device("a"), node="")])
    assert "nodeSelector" not in outcome.allocation


def test_class_and_request_selectors_both_count():
    slices = [
        slice_of(device("a", model="x"), device("b", model="y")),
        slice_of(device("n"), driver="nic.example.com", name="t"),
    ]
    assert taken(fit(claim(request(selector='device.attributes["gpu.example.com"].model == "y"')), slices)) == ["b"]
    assert taken(fit(claim(request(class_name="nic")), slices)) == ["n"]


def test_only_complete_pools_of_this_node_in_their_newest_generation_count():
    slices = [
        slice_of(device("old"), name="o"),
        slice_of(device("new"), name="p", generation=2),
        slice_of(device("half"), name="h", driver="half.example.com", count=2),
        slice_of(device("far"), name="f", node="n2"),
    ]
    assert taken(fit(claim(request(class_name="any", count=1)), slices)) == ["new"]
    assert fit(claim(request(class_name="any", count=2)), slices).allocation is None


def test_two_requests_of_one_claim_never_share_a_device():
    slices = [slice_of(device("a"), device("b"))]
    assert taken(fit(claim(request("x"), request("y")), slices)) == ["a", "b"]
    assert fit(claim(request("x", count=2), request("y")), slices).refusal == (
        "each request could be met alone, but not all of them together"
    )


def test_a_first_choice_that_leaves_too_little_for_the_rest_is_undone():
    slices = [slice_of(device("a", model="x"), device("b", model="y"))]
    picky = request("picky", selector='device.attributes["gpu.example.com"].model == "x"')
    assert taken(fit(claim(request("any"), picky), slices)) == ["b", "a"]


def test_all_takes_all_or_nothing():
    slices = [slice_of(device("a"), device("b"), device("c"))]
    assert taken(fit(claim(request(mode="All")), slices)) == ["a", "b", "c"]
    assert fit(claim(request(mode="All")), slices, in_use=["b"]).allocation is None
    assert fit(claim(request(mode="All", class_name="nic")), slices).refusal == (
        "request r wants all: 3 devices here, 0 of class nic"
    )


def test_first_available_tries_the_list_in_order_and_gives_the_reasons():
    alternatives = {"name": "r", "firstAvailable": [{"name": "two", **exactly(count=2)}, {"name": "one", **exactly()}]}
    outcome = fit(claim(alternatives), [slice_of(device("a"), device("b"))], in_use=["a"])
    assert outcome.allocation["devices"]["results"][0]["request"] == "r/one"
    assert outcome.choices[0].reason == (
        "first that fits, choice 2 of 2 (2 devices here, 2 of class gpu, 1 held by other claims);"
        " not r/two (2 devices here, 2 of class gpu, 1 held by other claims)"
    )


def test_match_attribute_tries_other_devices_until_they_agree():
    slices = [slice_of(device("a", link="x"), device("b", link="y"), device("c", link="y"), device("bare"))]
    constraint = {"matchAttribute": "gpu.example.com/link"}
    assert taken(fit(claim(request(count=2), constraints=[constraint]), slices)) == ["b", "c"]
    outcome = fit(claim(request(count=3), constraints=[constraint]), slices)
    assert outcome.refusal == "request r wants 3: 4 devices here, 4 of class gpu, 4 can't meet the constraints"


def test_match_attribute_compares_types_and_works_across_drivers():
    gpu = {"name": "g", "attributes": {"std.example.com/root": {"string": "1"}}}
    odd = {"name": "o", "attributes": {"std.example.com/root": {"int": 1}}}
    even = {"name": "e", "attributes": {"std.example.com/root": {"string": "1"}}}
    slices = [slice_of(gpu), slice_of(odd, even, driver="nic.example.com", name="t")]
    pair = claim(
        request("gpu"), request("nic", class_name="nic"), constraints=[{"matchAttribute": "std.example.com/root"}]
    )
    assert taken(fit(pair, slices)) == ["g", "e"]


def test_a_constraint_on_one_request_leaves_the_others_alone():
    slices = [slice_of(device("a", link="x"), device("b", link="y"))]
    constraints = [{"matchAttribute": "gpu.example.com/link", "requests": ["one"]}]
    assert taken(fit(claim(request("one"), request("two"), constraints=constraints), slices)) == ["a", "b"]


def test_distinct_attribute_allows_only_different_values():
    slices = [slice_of(device("a", numa=0), device("b", numa=0), device("c", numa=1))]
    constraint = {"distinctAttribute": "gpu.example.com/numa"}
    assert taken(fit(claim(request(count=2), constraints=[constraint]), slices)) == ["a", "c"]


def test_admin_access_gets_devices_that_others_hold_and_is_marked_in_the_result():
    outcome = fit(claim(request(mode="All", adminAccess=True)), [slice_of(device("a"), device("b"))], in_use=["a", "b"])
    assert taken(outcome) == ["a", "b"]
    assert all(result["adminAccess"] for result in outcome.allocation["devices"]["results"])


def test_tainted_devices_are_left_out_unless_the_taint_only_informs():
    tainted = {**device("a"), "taints": [{"key": "k", "effect": "NoSchedule"}]}
    informed = {**device("b"), "taints": [{"key": "k", "effect": "None"}]}
    outcome = fit(claim(request()), [slice_of(tainted, informed)])
    assert taken(outcome) == ["b"]
    assert "1 tainted" in outcome.choices[0].reason


def test_a_selector_that_fails_on_a_device_aborts_and_the_refusal_names_the_device():
    outcome = fit(
        claim(request(class_name="any", count=2, selector='device.attributes["gpu.example.com"].model == "x"')),
        [slice_of(device("a", model="x")), slice_of(device("n"), driver="nic.example.com", name="t")],
    )
    assert outcome.aborts
    assert "selector error on device n" in outcome.refusal
    assert "no such key: model" in outcome.refusal


def test_a_missing_class_is_a_refusal():
    assert "could not retrieve device class absent" in fit(claim(request(class_name="absent")), []).refusal


def test_more_than_32_devices_are_refused():
    slices = [slice_of(*[device(f"d{i}") for i in range(33)])]
    assert "number of requested devices 33" in fit(claim(request(mode="All")), slices).refusal


def test_configs_of_classes_come_first_and_only_those_of_requests_that_were_met_are_included():
    opaque = {"opaque": {"driver": DRIVER, "parameters": {"a": 1}}}
    classes = {"gpu": {"spec": {"config": [opaque]}}, "nic": {"spec": {}}}
    wire = claim(
        request("one"),
        request("two"),
        {"name": "alt", "firstAvailable": [{"name": "x", **exactly()}, {"name": "y", **exactly()}]},
        config=[{**opaque, "requests": ["two"]}, {**opaque, "requests": ["alt/y"]}, opaque],
    )
    slices = [slice_of(device("a"), device("b"), device("c"))]
    outcome = fit(wire, slices, classes=classes)
    assert [(c["source"], c.get("requests")) for c in outcome.allocation["devices"]["config"]] == [
        ("FromClass", ["one", "two", "alt/x"]),
        ("FromClaim", ["two"]),
        ("FromClaim", None),
    ]


@settings(max_examples=60)
@given(st.lists(st.integers(0, 2), max_size=6), st.integers(1, 4), st.sets(st.integers(0, 5)))
def test_a_set_that_agrees_is_found_exactly_when_there_is_one(links, count, held):
    """The result is compared with a search over all sets of devices."""
    slices = [slice_of(*[device(f"d{i}", link=link) for i, link in enumerate(links)])]
    outcome = fit(
        claim(request(count=count), constraints=[{"matchAttribute": "gpu.example.com/link"}]),
        slices,
        in_use=[f"d{i}" for i in held],
    )
    free = [i for i in range(len(links)) if i not in held]
    exists = any(len({links[i] for i in chosen}) == 1 for chosen in combinations(free, count))
    assert (outcome.allocation is not None) is exists
    if exists:
        chosen = [int(name[1:]) for name in taken(outcome)]
        assert len({links[i] for i in chosen}) == 1
        assert not set(chosen) & held
        assert len(set(chosen)) == count


@pytest.mark.parametrize("refused", [claim(request(count=2)), claim(request(selector="false"))])
def test_a_refusal_never_allocates(refused):
    outcome = fit(refused, [slice_of(device("a"))])
    assert (outcome.allocation, outcome.choices) == (None, ())
    assert outcome.refusal.startswith("request r wants")
