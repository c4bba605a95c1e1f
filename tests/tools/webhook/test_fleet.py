"""The fleet as shapes: what is counted, what is kept, also in a hostile or a huge cluster."""

from __future__ import annotations

import pytest

from dra_driver.tools.webhook import fleet as fleets
from dra_driver.tools.webhook.fleet import PublishedFleet
from dra_driver.tools.webhook.linting import FleetLinter
from dra_driver.tools.webhook.review import selectors
from tests.support.api.embedded_client import slice_wire
from tests.tools.webhook.support.reviews import DRIVER, claim, device_class, request

OTHER = "nic.example.com"


def device(index, **attributes):
    standard = {"uuid": {"string": f"GPU-{index}"}, "productName": {"string": "H100"}}
    capacity = {"memory": {"value": "80Gi"}}
    return {"name": f"gpu-{index}", "attributes": {**standard, **attributes}, "capacity": capacity}


def wire(name, *devices, driver=DRIVER):
    made = slice_wire(name, driver=driver, devices=list(devices))
    made["metadata"]["uid"] = name
    return made


def counts(fleet):
    return sorted(shape.count for shape in fleet.shapes())


def said(fleet, *expressions, class_name=DRIVER):
    linter = FleetLinter(fleet, (DRIVER,), kubernetes="1.35")
    obj = claim(requests=[request(*expressions, class_name=class_name)])
    return linter.warnings("ResourceClaim", selectors("ResourceClaim", obj))


@pytest.fixture
def fleet():
    made = PublishedFleet((DRIVER,))
    made.replace_classes((device_class(expressions=[f'device.driver == "{DRIVER}"'], name=DRIVER),))
    made.replace_slices(())
    return made


def test_a_list_in_pages_takes_effect_with_its_last_page(fleet):
    fleet.put_slice(wire("old", device(1)))
    fleet.replace_slices((wire("s1", device(1), device(2)),), is_first=True, is_last=False)
    assert counts(fleet) == [1]
    fleet.replace_slices((wire("s2", device(3)),), is_first=False, is_last=True)
    assert counts(fleet) == [3]


def test_a_list_that_starts_anew_drops_the_earlier_pages(fleet):
    fleet.replace_slices((wire("s1", device(1)),), is_first=True, is_last=False)
    fleet.replace_slices((wire("s2", device(1), device(2)),), is_first=True, is_last=True)
    assert counts(fleet) == [2]


def test_shapes_of_an_earlier_rollout_are_not_kept(fleet):
    for version in range(5):
        for number in range(50):
            fleet.put_slice(wire(f"s{number}", *(device(i, model={"string": f"v{version}"}) for i in range(8))))
        assert counts(fleet) == [400]
    shape_counts = fleet._shape_counts
    assert len(shape_counts.views) == len(shape_counts.counts) == len(shape_counts._copies) == 1
    for number in range(50):
        fleet.drop_slice(f"s{number}")
    assert (
        shape_counts.views,
        shape_counts.counts,
        shape_counts._copies,
        shape_counts._shapes_of,
        shape_counts._drivers,
    ) == ({}, {}, {}, {}, {})


def test_partitions_at_different_places_are_different_shapes_and_addresses_make_no_difference(fleet):
    places = [
        device(i, **{"memorySlice": {"int": i % 4}, "resource.kubernetes.io/pciBusID": {"string": f"0000:{i}"}})
        for i in range(8)
    ]
    fleet.put_slice(wire("s1", *places))
    assert counts(fleet) == [2, 2, 2, 2]


def test_an_identity_of_another_type_is_another_shape(fleet):
    fleet.put_slice(wire("s1", device(1), device(2, uuid={"int": 2})))
    assert counts(fleet) == [1, 1]


def test_only_some_of_many_different_devices_are_kept_and_those_of_other_drivers_remain(fleet, monkeypatch):
    nics = [device(i, mac={"string": f"02:{i}"}) for i in range(100)]
    fleet.put_slice(wire("nics", *nics, driver=OTHER))
    fleet.put_slice(wire("gpus", device(1)))
    assert len(fleet.shapes()) == fleets.MAX_OTHER_SHAPES + 1
    assert fleet.is_partly_known(OTHER)
    assert not fleet.is_partly_known(DRIVER)
    assert said(fleet, f'device.attributes["{DRIVER}"].productName == "H300"')


def test_there_is_no_warning_that_nothing_matches_where_the_fleet_is_partly_known(fleet, monkeypatch):
    monkeypatch.setattr(fleets, "MAX_SHAPES", 3)
    fleet.put_slice(wire("gpus", *(device(i, model={"string": f"m{i}"}) for i in range(5))))
    assert fleet.is_partly_known(DRIVER)
    assert said(fleet, f'device.attributes["{DRIVER}"].model == "m4"') == []


@pytest.mark.parametrize(
    "spec",
    [
        None,
        [],
        {"driver": 1, "devices": 7},
        {"driver": DRIVER, "devices": [None, 1, [], {"attributes": [], "capacity": 3}]},
        {"driver": DRIVER, "devices": [{"attributes": {"a": None, "b": [], "c": {"int": "x"}}, "capacity": {"m": []}}]},
        {"driver": DRIVER, "devices": [{"basic": 3}, {"basic": {"attributes": {"uuid": 3, "a": {"version": "?"}}}}]},
        {"driver": DRIVER, "devices": [{"capacity": {"m": {"value": "1e999999999"}, "n": {"value": "?"}}}]},
    ],
)
def test_malformed_slices_cause_no_error(fleet, spec):
    fleet.put_slice({"metadata": {"uid": "bad"}, "spec": spec})
    fleet.put_slice(wire("good", device(1)))
    assert fleet.shapes()
    assert isinstance(said(fleet, f'device.attributes["{DRIVER}"].productName == "H100"'), list)


@pytest.mark.parametrize(
    ("expression", "is_judged"),
    [
        ('device.attributes["D"].uuid == "GPU-9"', False),
        ('device.attributes["D"]["uuid"] == "GPU-9"', False),
        ('device.attributes["D"].exists(name, name == "nothing")', False),
        ('device.attributes["D"].productName == "uuid"', True),
    ],
)
def test_a_selector_that_reads_identities_of_devices_gets_no_warning_that_nothing_matches(fleet, expression, is_judged):
    fleet.put_slice(wire("s1", device(1), device(2)))
    found = said(fleet, expression.replace("D", DRIVER))
    assert any("always-false" in one for one in found) is is_judged
