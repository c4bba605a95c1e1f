"""What the embedded API demands of ResourceSlices, by version and gate: each rule broken once, and held once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.embedded.apiserver import EmbeddedApi
from dra_driver.embedded.refusals import Refusal
from tests.support.embedded_client import SLICES, slice_wire

ALL_GATES = {
    "DRADeviceTaints": True,
    "DRAPartitionableDevices": True,
    "DRAConsumableCapacity": True,
    "DRADeviceBindingConditions": True,
}


def server(minor=36, **gates):
    return EmbeddedApi(version=f"1.{minor}", gates={**ALL_GATES, **gates})


def create(api, **spec):
    return api.request("POST", SLICES, body=slice_wire(**spec))


def fields(api, **spec):
    """The fields of the causes with which a slice is refused."""
    with pytest.raises(Refusal) as caught:
        create(api, **spec)
    assert caught.value.status == 422, caught.value.message
    assert caught.value.reason == "Invalid"
    return [cause["field"] for cause in caught.value.wire()["details"]["causes"]]


def one(**device):
    return [{"name": "d", **device}]


TAINT = {"key": "example.com/sick", "effect": "NoSchedule"}
COUNTERS = {"memory": {"value": "8"}}
CONSUMES = [{"counterSet": "gpu", "counters": {"memory": {"value": "1"}}}]
SHARED = {"allowMultipleAllocations": True}

FIRST = "spec.devices[0]"
POLICY = "spec.devices[0].capacity[m].requestPolicy"


def shared(policy, value="10"):
    return one(**SHARED, capacity={"m": {"value": value, "requestPolicy": policy}})


BROKEN = [
    ({"driver": ""}, "spec.driver"),
    ({"driver": "a" * 64}, "spec.driver"),
    ({"driver": "under_score"}, "spec.driver"),
    ({"pool": {"name": "", "generation": 1, "resourceSliceCount": 1}}, "spec.pool.name"),
    ({"pool": {"name": "a//b", "generation": 1, "resourceSliceCount": 1}}, "spec.pool.name"),
    ({"pool": {"name": "a" * 254, "generation": 1, "resourceSliceCount": 1}}, "spec.pool.name"),
    ({"pool": {"name": "p", "generation": 1, "resourceSliceCount": 0}}, "spec.pool.resourceSliceCount"),
    ({"pool": {"name": "p", "generation": -1, "resourceSliceCount": 1}}, "spec.pool.generation"),
    ({"nodeName": None}, "spec"),
    ({"allNodes": True}, "spec"),
    ({"nodeName": ""}, "spec.nodeName"),
    ({"nodeName": None, "allNodes": False}, "spec.allNodes"),
    ({"nodeName": None, "nodeSelector": {"nodeSelectorTerms": []}}, "spec.nodeSelector.nodeSelectorTerms"),
    ({"devices": one() + one()}, "spec.devices[1].name"),
    ({"devices": [{"name": "a.b"}]}, f"{FIRST}.name"),
    ({"devices": [{"name": "a" * 64}]}, f"{FIRST}.name"),
    ({"devices": [{"name": f"d{i}"} for i in range(129)]}, "spec.devices"),
    ({"devices": [{"name": f"d{i}"} for i in range(64)] + one(taints=[TAINT])}, "spec.devices"),
    ({"devices": one(attributes={f"a{i}": {"int": 1} for i in range(33)})}, FIRST),
    (
        {"devices": one(attributes={"a": {"int": 1}}, capacity={f"c{i}": {"value": "1"} for i in range(32)})},
        FIRST,
    ),
    ({"devices": one(attributes={"": {"int": 1}})}, f"{FIRST}.attributes[]"),
    ({"devices": one(attributes={"1a": {"int": 1}})}, f"{FIRST}.attributes[1a]"),
    ({"devices": one(attributes={"a-b": {"int": 1}})}, f"{FIRST}.attributes[a-b]"),
    ({"devices": one(attributes={"a" * 33: {"int": 1}})}, f"{FIRST}.attributes[{'a' * 33}]"),
    ({"devices": one(attributes={"UP.com/a": {"int": 1}})}, f"{FIRST}.attributes[UP.com/a]"),
    ({"devices": one(attributes={"a": {}})}, f"{FIRST}.attributes[a]"),
    ({"devices": one(attributes={"a": {"int": 1, "bool": True}})}, f"{FIRST}.attributes[a]"),
    ({"devices": one(attributes={"a": {"string": "x" * 65}})}, f"{FIRST}.attributes[a].string"),
    ({"devices": one(attributes={"a": {"string": "é" * 33}})}, f"{FIRST}.attributes[a].string"),
    ({"devices": one(attributes={"a": {"version": "1.2"}})}, f"{FIRST}.attributes[a].version"),
    ({"devices": one(attributes={"a": {"version": "01.2.3"}})}, f"{FIRST}.attributes[a].version"),
    ({"devices": one(attributes={"a": {"version": "v1.2.3"}})}, f"{FIRST}.attributes[a].version"),
    ({"devices": one(capacity={"m": {}})}, f"{FIRST}.capacity[m].value"),
    (
        {"devices": one(capacity={"m": {"value": "1", "requestPolicy": {"default": "1"}}})},
        POLICY,
    ),
    ({"devices": shared({"validRange": {"min": "1"}})}, f"{POLICY}.default"),
    (
        {"devices": shared({"default": "1", "validRange": {"min": "1"}, "validValues": ["1"]})},
        POLICY,
    ),
    ({"devices": shared({"default": "11"})}, f"{POLICY}.default"),
    (
        {"devices": shared({"default": "3", "validValues": ["1", "2"]})},
        f"{POLICY}.validValues",
    ),
    (
        {"devices": shared({"default": "1", "validValues": ["2", "1"]})},
        f"{POLICY}.validValues[1]",
    ),
    (
        {"devices": shared({"default": "1", "validRange": {"max": "2"}})},
        f"{POLICY}.validRange.min",
    ),
    (
        {"devices": shared({"default": "2", "validRange": {"min": "1", "step": "2"}})},
        f"{POLICY}.validRange.default",
    ),
    (
        {"devices": shared({"default": "1", "validRange": {"min": "1", "step": "0"}})},
        f"{POLICY}.validRange.step",
    ),
    ({"devices": one(taints=[{"effect": "NoSchedule"}])}, f"{FIRST}.taints[0].key"),
    ({"devices": one(taints=[{"key": "a b", "effect": "NoSchedule"}])}, f"{FIRST}.taints[0].key"),
    ({"devices": one(taints=[{"key": "a"}])}, f"{FIRST}.taints[0].effect"),
    ({"devices": one(taints=[{"key": "a", "effect": "Often"}])}, f"{FIRST}.taints[0].effect"),
    ({"devices": one(taints=[{**TAINT, "value": "a b"}])}, f"{FIRST}.taints[0].value"),
    ({"devices": one(taints=[{**TAINT, "timeAdded": "today"}])}, f"{FIRST}.taints[0].timeAdded"),
    ({"devices": one(taints=[{**TAINT, "key": f"k{i}"} for i in range(17)])}, f"{FIRST}.taints"),
    ({"devices": one(nodeName="n")}, f"{FIRST}.nodeName"),
    ({"devices": one(bindingConditions=["a"])}, FIRST),
    (
        {"devices": one(bindingConditions=list("abcde"), bindingFailureConditions=["x"])},
        f"{FIRST}.bindingConditions",
    ),
    (
        {"devices": one(bindingConditions=["a"], bindingFailureConditions=["a"])},
        f"{FIRST}.bindingFailureConditions",
    ),
    ({"nodeName": None, "perDeviceNodeSelection": True, "devices": one()}, FIRST),
    ({"sharedCounters": [{"name": "gpu", "counters": {}}]}, "spec.sharedCounters[0].counters"),
    ({"sharedCounters": [{"name": "gpu", "counters": COUNTERS}] * 2}, "spec.sharedCounters[1].name"),
    ({"sharedCounters": [{"name": f"g{i}", "counters": COUNTERS} for i in range(9)]}, "spec.sharedCounters"),
    (
        {"sharedCounters": [{"name": "g", "counters": {f"c{i}": {"value": "1"} for i in range(33)}}]},
        "spec.sharedCounters[0].counters",
    ),
    ({"sharedCounters": [{"name": "gpu", "counters": COUNTERS}], "devices": []}, "spec.sharedCounters"),
    (
        {"devices": one(consumesCounters=[{**CONSUMES[0], "counterSet": f"g{i}"} for i in range(3)])},
        f"{FIRST}.consumesCounters",
    ),
    ({"devices": one(consumesCounters=CONSUMES * 2)}, f"{FIRST}.consumesCounters[1].counterSet"),
    ({"devices": one(consumesCounters=[{"counterSet": "g"}])}, f"{FIRST}.consumesCounters[0].counters"),
]


@pytest.mark.parametrize(("spec", "field"), BROKEN, ids=[f"{n:02}-{field}" for n, (_, field) in enumerate(BROKEN)])
def test_a_broken_rule_is_a_cause_with_its_field(spec, field):
    assert field in fields(server(), **spec)


def test_every_fault_is_told_at_once():
    assert len(fields(server(), driver="a_b", devices=[{"name": "A"}, {"name": "B"}])) == 4


HELD = [
    {"devices": [{"name": f"d{i}"} for i in range(128)]},
    {"devices": [{"name": f"d{i}", "taints": [TAINT]} for i in range(64)]},
    {"devices": one(attributes={f"a{i}": {"int": 1} for i in range(32)})},
    {"devices": one(attributes={"other.example.com/name_1": {"string": "x" * 64}, "v": {"version": "1.2.3-a+b"}})},
    {"devices": one(attributes={"b": {"bool": False}, "z": {"int": 0}, "e": {"string": ""}})},
    {"nodeName": None, "allNodes": True},
    {"nodeName": None, "perDeviceNodeSelection": True, "devices": one(nodeName="n1")},
    {"sharedCounters": [{"name": f"g{i}", "counters": COUNTERS} for i in range(8)]},
    {"devices": one(consumesCounters=CONSUMES)},
    {"devices": shared({"default": "1", "validRange": {"min": "1", "step": "3", "max": "10"}})},
    {"devices": shared({"default": "2", "validValues": ["1", "2", "10"]})},
    {"devices": one(bindingConditions=["example.com/ready"], bindingFailureConditions=["example.com/failed"])},
    {"driver": "Upper.Example.Com", "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1}},
    {"pool": {"name": "n1/gpu.example.com", "generation": 0, "resourceSliceCount": 9}},
]


@pytest.mark.parametrize("spec", HELD)
def test_a_slice_at_its_limits_is_accepted(spec):
    assert create(server(), **spec)["metadata"]["uid"]


def test_the_driver_the_pool_name_and_the_node_never_change():
    api = server()
    create(api)
    for spec in ({"driver": "other"}, {"node": "n2"}, {"nodeName": None, "allNodes": True}):
        with pytest.raises(Refusal) as caught:
            api.request("PUT", f"{SLICES}/s", body=slice_wire(**spec))
        assert caught.value.status == 422
    assert api.request("PUT", f"{SLICES}/s", body=slice_wire(devices=one()))["metadata"]["generation"] == 2


class TestThe134Layout:
    """Counters stand in the slice of the devices that use them."""

    def test_counters_and_devices_share_a_slice(self):
        sets = [{"name": "gpu", "counters": COUNTERS}]
        made = create(server(34), sharedCounters=sets, devices=one(consumesCounters=CONSUMES))
        assert made["spec"]["sharedCounters"] == sets

    def test_counters_that_are_not_in_the_slice_are_refused(self):
        assert fields(server(34), devices=one(consumesCounters=CONSUMES)) == [f"{FIRST}.consumesCounters[0].counterSet"]
        sets = [{"name": "gpu", "counters": {"other": {"value": "1"}}}]
        assert fields(server(34), sharedCounters=sets, devices=one(consumesCounters=CONSUMES)) == [
            f"{FIRST}.consumesCounters[0].counters"
        ]

    def test_32_counters_in_all_and_4_taints(self):
        sets = [{"name": f"g{i}", "counters": {f"c{j}": {"value": "1"} for j in range(3)}} for i in range(11)]
        assert fields(server(34), sharedCounters=sets) == ["spec.sharedCounters"]
        assert fields(server(34), devices=one(taints=[{**TAINT, "key": f"k{i}"} for i in range(5)])) == [
            f"{FIRST}.taints"
        ]

    def test_the_effect_none_is_not_known_yet(self):
        devices = one(taints=[{**TAINT, "effect": "None"}])
        assert fields(server(34), devices=devices) == [f"{FIRST}.taints[0].effect"]
        assert create(server(35), devices=devices)

    def test_128_devices_with_taints(self):
        assert create(server(34), devices=[{"name": f"d{i}", "taints": [TAINT]} for i in range(128)])


FULL = {
    "taints": [TAINT],
    "consumesCounters": CONSUMES,
    "allowMultipleAllocations": True,
    "capacity": {"m": {"value": "1", "requestPolicy": {"default": "1"}}},
    "bindsToNode": True,
}


class TestGates:
    """Fields of switched-off gates vanish at the write, unless the stored slice has them already."""

    @pytest.mark.parametrize("minor", [34, 35])
    def test_alpha_fields_vanish_without_a_word_by_default(self, minor):
        api = EmbeddedApi(version=f"1.{minor}")
        (device,) = create(api, devices=one(**FULL))["spec"]["devices"]
        assert device == {"name": "d", "capacity": {"m": {"value": "1"}}}

    def test_136_keeps_them_by_default(self):
        (device,) = create(EmbeddedApi(version="1.36"), devices=one(**FULL))["spec"]["devices"]
        assert device.keys() == {"name", *FULL}

    def test_a_counter_slice_is_emptied_when_its_gate_is_off(self):
        made = create(server(DRAPartitionableDevices=False), sharedCounters=[{"name": "gpu", "counters": COUNTERS}])
        assert "sharedCounters" not in made["spec"]

    def test_each_gate_takes_its_own_fields_only(self):
        (device,) = create(server(DRADeviceTaints=False), devices=one(**FULL))["spec"]["devices"]
        assert device.keys() == {"name", *FULL} - {"taints"}

    def test_what_a_stored_slice_uses_may_stay(self):
        api = server()
        create(api, devices=one(taints=[TAINT]))
        api._registry._gates = api._registry._gates - {"DRADeviceTaints"}
        more = [*one(taints=[TAINT]), {"name": "e", "taints": [TAINT]}]
        made = api.request("PUT", f"{SLICES}/s", body=slice_wire(devices=more))
        assert all("taints" in device for device in made["spec"]["devices"])

    def test_list_attributes_need_their_gate(self):
        devices = one(attributes={"numa": {"ints": [0, 1]}})
        assert fields(server(), devices=devices) == [f"{FIRST}.attributes[numa]"]
        assert create(server(DRAListTypeAttributes=True), devices=devices)
        many = one(attributes={"a": {"ints": list(range(49))}})
        assert fields(server(DRAListTypeAttributes=True), devices=many) == [f"{FIRST}.attributes"]


def test_a_taint_is_stamped_when_it_comes_without_a_time_and_kept_when_it_has_one():
    api = server()
    (device,) = create(api, devices=one(taints=[TAINT]))["spec"]["devices"]
    assert device["taints"][0]["timeAdded"].endswith("Z")
    old = {**TAINT, "timeAdded": "2020-01-01T00:00:00Z"}
    made = api.request("PUT", f"{SLICES}/s", body=slice_wire(devices=one(taints=[old])))
    assert made["spec"]["devices"][0]["taints"] == [old]


@pytest.mark.parametrize(
    "device",
    [
        {"attributes": {"a": {"int": "1"}}},
        {"attributes": {"a": {"int": 1.5}}},
        {"attributes": {"a": {"int": True}}},
        {"attributes": {"a": {"int": 2**63}}},
        {"attributes": {"a": {"bool": 1}}},
        {"attributes": {"a": {"string": 1}}},
        {"attributes": []},
        {"capacity": {"m": {"value": "ten"}}},
        {"capacity": {"m": {"value": "1X"}}},
        {"taints": {}},
    ],
)
def test_wrong_types_are_a_bad_request(device):
    with pytest.raises(Refusal) as caught:
        create(server(), devices=one(**device))
    assert caught.value.status == 400


NAMES = st.from_regex(r"\A[A-Za-z_][A-Za-z0-9_]{0,31}\Z")
VALUES = st.one_of(
    st.integers(-(2**63), 2**63 - 1).map(lambda v: {"int": v}),
    st.booleans().map(lambda v: {"bool": v}),
    st.text(max_size=16).map(lambda v: {"string": v}),
    st.tuples(*[st.integers(0, 10**6)] * 3).map(lambda v: {"version": ".".join(map(str, v))}),
)


@settings(max_examples=40)
@given(st.lists(st.dictionaries(NAMES, VALUES, max_size=32), max_size=8))
def test_what_is_within_the_limits_comes_back_as_it_was_sent(attributes):
    devices = [
        {"name": f"d{i}", "attributes": found} if found else {"name": f"d{i}"} for i, found in enumerate(attributes)
    ]
    made = create(EmbeddedApi(), devices=devices)
    assert made["spec"].get("devices", []) == devices
