"""How the embedded API treats ResourceSlices, by version and gate. Single rules: test_recorded_verdicts.py."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.simulator.api_server import EmbeddedApi
from dra_driver.simulator.shapes import ApiRefusal
from tests.simulator.support.api_cases import ALL_GATES, CONSUMES, COUNTERS, FULL, TAINT, one
from tests.support.api.embedded_client import SLICES, slice_wire


def server(minor=36, **gates):
    return EmbeddedApi(version=f"1.{minor}", gates={**ALL_GATES, **gates})


def create(api, **spec):
    return api.request("POST", SLICES, body=slice_wire(**spec))


def fields(api, **spec):
    """Return the fields of the causes with which a slice is refused."""
    with pytest.raises(ApiRefusal) as caught:
        create(api, **spec)
    assert caught.value.status == 422, caught.value.message
    assert caught.value.reason == "Invalid"
    return [cause["field"] for cause in caught.value.wire()["details"]["causes"]]


def test_all_faults_are_reported_at_once():
    assert len(fields(server(), driver="a_b", devices=[{"name": "A"}, {"name": "B"}])) == 4


def test_the_driver_the_pool_name_and_the_node_never_change():
    api = server()
    create(api)
    for spec in ({"driver": "other"}, {"node": "n2"}, {"nodeName": None, "allNodes": True}):
        with pytest.raises(ApiRefusal) as caught:
            api.request("PUT", f"{SLICES}/s", body=slice_wire(**spec))
        assert caught.value.status == 422
    assert api.request("PUT", f"{SLICES}/s", body=slice_wire(devices=one()))["metadata"]["generation"] == 2


class TestThe134Layout:
    """In 1.34, counters are in the slice of the devices that use them."""

    def test_counters_and_devices_share_a_slice(self):
        sets = [{"name": "gpu", "counters": COUNTERS}]
        made = create(server(34), sharedCounters=sets, devices=one(consumesCounters=CONSUMES))
        assert made["spec"]["sharedCounters"] == sets

    def test_counters_that_are_not_in_the_slice_are_refused(self):
        assert fields(server(34), devices=one(consumesCounters=CONSUMES)) == [
            "spec.devices[0].consumesCounters[0].counterSet"
        ]
        sets = [{"name": "gpu", "counters": {"other": {"value": "1"}}}]
        assert fields(server(34), sharedCounters=sets, devices=one(consumesCounters=CONSUMES)) == [
            "spec.devices[0].consumesCounters[0].counters"
        ]

    def test_more_than_32_counters_in_all_or_4_taints_are_refused(self):
        sets = [{"name": f"g{i}", "counters": {f"c{j}": {"value": "1"} for j in range(3)}} for i in range(11)]
        assert fields(server(34), sharedCounters=sets) == ["spec.sharedCounters"]
        assert fields(server(34), devices=one(taints=[{**TAINT, "key": f"k{i}"} for i in range(5)])) == [
            "spec.devices[0].taints"
        ]

    def test_the_effect_none_is_not_known_yet(self):
        devices = one(taints=[{**TAINT, "effect": "None"}])
        assert fields(server(34), devices=devices) == ["spec.devices[0].taints[0].effect"]
        assert create(server(35), devices=devices)

    def test_128_devices_may_have_taints(self):
        assert create(server(34), devices=[{"name": f"d{i}", "taints": [TAINT]} for i in range(128)])


class TestGates:
    """Fields of gates that are off are dropped by a write, unless the stored slice has them already."""

    @pytest.mark.parametrize("minor", [34, 35])
    def test_alpha_fields_are_dropped_without_an_error_by_default(self, minor):
        api = EmbeddedApi(version=f"1.{minor}")
        (device,) = create(api, devices=one(**FULL))["spec"]["devices"]
        assert device == {"name": "d", "capacity": {"m": {"value": "1"}}}

    def test_136_keeps_them_by_default(self):
        (device,) = create(EmbeddedApi(version="1.36"), devices=one(**FULL))["spec"]["devices"]
        assert device.keys() == {"name", *FULL}

    def test_a_counter_slice_is_emptied_when_its_gate_is_off(self):
        made = create(server(DRAPartitionableDevices=False), sharedCounters=[{"name": "gpu", "counters": COUNTERS}])
        assert "sharedCounters" not in made["spec"]

    def test_a_gate_that_is_off_drops_its_own_fields_only(self):
        (device,) = create(server(DRADeviceTaints=False), devices=one(**FULL))["spec"]["devices"]
        assert device.keys() == {"name", *FULL} - {"taints"}

    def test_fields_that_a_stored_slice_uses_are_kept(self):
        api = server()
        create(api, devices=one(taints=[TAINT]))
        api._registry._gates = api._registry._gates - {"DRADeviceTaints"}
        more = [*one(taints=[TAINT]), {"name": "e", "taints": [TAINT]}]
        made = api.request("PUT", f"{SLICES}/s", body=slice_wire(devices=more))
        assert all("taints" in device for device in made["spec"]["devices"])

    def test_list_attributes_need_their_gate(self):
        devices = one(attributes={"numa": {"ints": [0, 1]}})
        assert fields(server(), devices=devices) == ["spec.devices[0].attributes[numa]"]
        assert create(server(DRAListTypeAttributes=True), devices=devices)
        many = one(attributes={"a": {"ints": list(range(49))}})
        assert fields(server(DRAListTypeAttributes=True), devices=many) == ["spec.devices[0].attributes"]


def test_a_taint_gets_a_time_if_it_has_none_and_keeps_the_one_that_it_has():
    api = server()
    (device,) = create(api, devices=one(taints=[TAINT]))["spec"]["devices"]
    assert device["taints"][0]["timeAdded"].endswith("Z")
    old = {**TAINT, "timeAdded": "2020-01-01T00:00:00Z"}
    made = api.request("PUT", f"{SLICES}/s", body=slice_wire(devices=one(taints=[old])))
    assert made["spec"]["devices"][0]["taints"] == [old]


NAMES = st.from_regex(r"\A[A-Za-z_][A-Za-z0-9_]{0,31}\Z")
VALUES = st.one_of(
    st.integers(-(2**63), 2**63 - 1).map(lambda v: {"int": v}),
    st.booleans().map(lambda v: {"bool": v}),
    st.text(max_size=16).map(lambda v: {"string": v}),
    st.tuples(*[st.integers(0, 10**6)] * 3).map(lambda v: {"version": ".".join(map(str, v))}),
)


@settings(max_examples=40)
@given(st.lists(st.dictionaries(NAMES, VALUES, max_size=32), max_size=8))
def test_attributes_within_the_limits_are_stored_as_they_were_sent(attributes):
    devices = [
        {"name": f"d{i}", "attributes": found} if found else {"name": f"d{i}"} for i, found in enumerate(attributes)
    ]
    made = create(EmbeddedApi(), devices=devices)
    assert made["spec"].get("devices", []) == devices
