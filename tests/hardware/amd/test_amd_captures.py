"""Machines with AMD's GPUs, drawn and captured: each gives an exact list of devices.

Most of them hold a part of a machine (the topology alone, or one PCI folder), so facts that they lack are absent.
"""

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dra_driver.hardware.amd.hardware import AmdHardware
from dra_driver.hardware.amd.health import AmdGpu
from dra_driver.node.devices.build import build_inventory
from tests.support.nodes.drawn_machines import FORMS, machine

GIB = 1 << 30
ONE = {  # name, product, memory in bytes, architecture, compute units
    "radeon-phoenix": ("gpu-0000-64-00-0", "AMD Radeon 780M Graphics", 31433977856, "gfx1103", 12),
    "radeon-strixpoint": ("gpu-0000-c1-00-0", "AMD Radeon 880M Graphics", 16441004032, "gfx1150", 12),
    "radeon-procfs-card0": ("gpu-0000-09-00-0", "AMD Radeon RX Vega", 8573157376, None, None),
    "radeon-vega56": ("gpu-0000-0b-00-0", "AMD Radeon RX Vega", 8573157376, None, None),
    "radeon-rx580": ("gpu-0000-09-00-0", "AMD Radeon RX 580 Series", 4294967296, None, None),
    "radeon-rx6900xt": ("gpu-0000-0c-00-0", "AMD Radeon RX 6900 XT", 17163091968, None, None),
    "radeon-rx7900xtx": ("gpu-0000-03-00-0", None, None, None, None),
    "vega10-1gpu-doubled": ("gpu-0000-19-00-0", "AMD Radeon Instinct MI25", 17163091968, None, 64),
}


HardwareOf = Callable[[str], AmdHardware]


@pytest.fixture(params=FORMS)
def hardware(request: pytest.FixtureRequest, tmp_path: Path) -> HardwareOf:
    return lambda name: AmdHardware(machine(name, request.param, "amd", tmp_path))


def gpus(hardware: AmdHardware) -> list[AmdGpu]:
    return [gpu for gpu in hardware.discover().gpus if isinstance(gpu, AmdGpu)]


@pytest.mark.parametrize("capture", ONE)
def test_a_machine_with_one_gpu_has_one_device(capture: str, hardware: HardwareOf) -> None:
    (gpu,) = gpus(hardware(capture))
    (device,) = build_inventory(hardware(capture).discover()).devices
    found = gpu.product_name, gpu.memory_bytes, gpu.architecture_target, gpu.compute_units
    assert (device.name, *found) == ONE[capture]


def test_two_nodes_of_the_topology_at_one_place_are_one_gpu_and_a_problem(hardware: HardwareOf) -> None:
    problems = hardware("vega10-1gpu-doubled").discover().problems
    assert [problem.code for problem in problems] == ["hardware.identity-shared"]


def test_eight_mi210_are_in_two_hives_of_four(hardware: HardwareOf) -> None:
    found = gpus(hardware("mi210-8gpu-2hives"))
    hives = [gpu.link_domain for gpu in found]
    assert [gpu.compute_units for gpu in found] == [104] * 8
    assert sorted(hives.count(hive) for hive in set(hives)) == [4, 4]


def test_the_partitions_of_eight_mi300x_are_those_that_the_topology_lists(hardware: HardwareOf) -> None:
    found = gpus(hardware("mi300x-cpx-nps1-8gpu"))
    by_gpu = [
        [gpu for gpu in found if gpu.pci_address == address] for address in sorted({g.pci_address for g in found})
    ]
    assert [len(parts) for parts in by_gpu] == [8] * 7 + [7]
    assert {gpu.compute_units for gpu in found} == {38}
    assert [gpu.part for gpu in by_gpu[0]] == [f"xcp-{index}" for index in range(8)]
    assert sorted(gpu.minor for gpu in found) == list(range(128, 191))


def test_four_mi300a_in_spx_are_four_gpus_and_none_of_their_28_render_nodes_is_a_device(hardware: HardwareOf) -> None:
    found = gpus(hardware("mi300a-spx-4gpu-xcp"))
    assert [(gpu.pci_address, gpu.part, gpu.minor) for gpu in found] == [
        (f"000{number}:02:00.0", "", 128 + 8 * number) for number in range(4)
    ]
    assert {(gpu.compute_units, gpu.is_integrated) for gpu in found} == {(228, True)}


@pytest.mark.parametrize("capture", [*ONE, "mi210-8gpu-2hives", "mi300x-cpx-nps1-8gpu", "mi300a-spx-4gpu-xcp"])
def test_the_order_of_listings_changes_nothing(
    capture: str, hardware: HardwareOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = hardware(capture).discover
    expected, listdir, dice = look(), os.listdir, random.Random(capture)
    monkeypatch.setattr(os, "listdir", lambda folder: dice.sample(listed := listdir(folder), len(listed)))
    assert all(look() == expected for _ in range(40))


@pytest.mark.parametrize("form", FORMS)
def test_devices_are_shown_in_the_form_of_the_api(form: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dra_driver", "devices", "--hardware", "amd", "--output", "json"]
    command += ["--sysfs-root", machine("radeon-strixpoint", form, "amd", tmp_path).sys, "--node-name", "laptop"]
    shown = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=120).stdout)
    assert shown["pool"] == "laptop/gpu.amd.com"
    (device,) = shown["devices"]
    assert device["attributes"]["type"] == {"string": "amdgpu"}
    assert device["attributes"]["productName"] == {"string": "AMD_Radeon_880M_Graphics"}
    assert device["capacity"]["computeUnits"] == {"value": "12"}


@pytest.mark.parametrize("form", FORMS)
def test_the_wide_table_has_compute_units_and_hives(form: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "dra_driver", "devices", "--hardware", "amd", "--output", "wide"]
    command += ["--sysfs-root", machine("mi210-8gpu-2hives", form, "amd", tmp_path).sys]
    shown = subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=120, env={**os.environ, "COLUMNS": "200"}
    ).stdout
    (first, *_) = gpus(AmdHardware(machine("mi210-8gpu-2hives", form, "amd", tmp_path)))
    row = next(line for line in shown.splitlines() if first.name in line)
    assert "104 CU" in row
    assert str(first.link_domain) in row
