"""Machines with Intel's GPUs, drawn and captured: each gives an exact list of devices."""

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from dra_driver.hardware.intel.attributes import IntelHardware
from dra_driver.node.devices.build import build_inventory
from dra_driver.node.devices.describing import device_wire
from tests.support.nodes.drawn_machines import FORMS, machine

DEVICES = {  # name, model, family, PCI id, kernel driver, nodes of the management engine
    "gpu-a380-i915": ("gpu-0000-0b-00-0", "A380", "Arc A-Series", "0x56a5", "i915", ()),
    "gpu-b580": ("gpu-0000-09-00-0", "B580", "Arc B-Series", "0xe20b", "xe", ("mei0",)),
    "gpu-b580-6.16": ("gpu-0000-0b-00-0", "B580", "Arc B-Series", "0xe20b", "xe", ("mei0",)),
}


HardwareOf = Callable[[str], IntelHardware]


@pytest.fixture(params=FORMS)
def hardware(request: pytest.FixtureRequest, tmp_path: Path) -> HardwareOf:
    return lambda name: IntelHardware(machine(name, request.param, "intel", tmp_path))


@pytest.mark.parametrize("capture", DEVICES)
def test_a_machine_with_one_gpu_has_one_device(capture: str, hardware: HardwareOf) -> None:
    facts = hardware(capture).discover()
    (device,) = build_inventory(facts).devices
    values = [device.attributes.get(name) for name in ("model", "family", "pciId", "driver")]
    assert (device.name, *values, facts.gpus[0].admin_nodes) == DEVICES[capture]
    assert facts.gpus[0].is_integrated is False
    assert device.capacity == {"memory": 0, "millicores": 1000}  # no file of these captures says how much there is


@pytest.mark.parametrize("capture", DEVICES)
def test_the_order_of_listings_changes_nothing(
    capture: str, hardware: HardwareOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wire() -> str:
        return repr([device_wire(device) for device in build_inventory(hardware(capture).discover()).devices])

    expected, listdir, dice = wire(), os.listdir, random.Random(capture)
    monkeypatch.setattr(os, "listdir", lambda folder: dice.sample(listed := listdir(folder), len(listed)))
    assert all(wire() == expected for _ in range(40))
