import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.base.quantity import Quantity
from dra_driver.base.wire import DeviceType
from dra_driver.node.devices.build import build_inventory
from dra_driver.node.devices.describing import attribute_wire, device_wire, quantity_text, rows_of
from tests.support.facts import FULL_GPU, facts

SHARED = Path(os.environ.get("DRA_SHARED", Path(__file__).parents[4] / "shared"))


def test_each_value_is_written_under_the_key_of_its_type():
    assert attribute_wire("Hopper") == {"string": "Hopper"}
    assert attribute_wire(True) == {"bool": True}
    assert attribute_wire(0) == {"int": 0}
    assert attribute_wire(("version", "9.0.0")) == {"version": "9.0.0"}


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("memory", 80 << 30, "80Gi"),
        ("memory", 81559 << 20, "81559Mi"),
        ("memory", 85899345921, "85899345921"),
        ("memory", 0, "0"),
        ("multiprocessors", 132, "132"),
        ("multiprocessors", 2000, "2k"),
        ("memorySlice0", 1, "1"),
    ],
)
def test_capacities_are_written_as_the_server_would_write_them(name, value, text):
    assert quantity_text(name, value) == text


@settings(deadline=None)
@given(st.integers(0, 2**63 - 1), st.sampled_from(["memory", "decoders"]))
def test_a_capacity_reads_back_as_itself_and_is_already_canonical(value, name):
    text = quantity_text(name, value)
    assert Quantity.parse(text).value == value
    assert str(Quantity.parse(text)) == text


def test_a_device_without_capacity_has_no_capacity_key():
    device = build_inventory(facts(FULL_GPU)).devices[0]
    bare = type(device)(device.name, device.type, {}, {}, device.gpu)
    assert device_wire(bare) == {"name": "gpu-0000-65-00-0"}


def test_the_wire_form_is_plain_json():
    wire = device_wire(build_inventory(facts(FULL_GPU)).devices[0])
    assert json.loads(json.dumps(wire)) == wire


@pytest.mark.skipif(
    not (SHARED / "peers").is_dir(), reason="recordings and figures beside the repository are not here (DRA_SHARED)"
)
def test_everything_in_slices_of_nvidias_driver_is_declared_with_the_same_kind():
    captures = json.loads((SHARED / "peers" / "nvidia-published.json").read_text())
    kinds = {kind: {row.name: row.kind.value for row in rows} for kind, rows in rows_of("nvidia").items()}
    seen = 0
    for capture in captures.values():
        for pool_slice in capture if isinstance(capture, list) else ():
            for device in pool_slice.get("devices", ()):
                known = kinds[DeviceType(device["attributes"]["type"]["string"])]
                assert {
                    name: next(iter(value)) for name, value in device["attributes"].items()
                }.items() <= known.items()
                if "consumesCounters" not in device:  # those carry the dimensions of partitions too
                    assert dict.fromkeys(device["capacity"], "quantity").items() <= known.items()
                seen += 1
    assert seen
