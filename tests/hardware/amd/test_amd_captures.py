"""Captures of real AMD machines, read from beside the repository: each gives an exact list of devices.

Most captures hold a part of a machine (the topology alone, or one PCI folder), so facts that they lack are absent.
"""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from dra_driver.hardware.amd.hardware import AmdHardware
from dra_driver.hardware.amd.health import AmdGpu
from dra_driver.hardware.port import Roots
from dra_driver.node.devices.build import build_inventory

CAPTURES = Path(os.environ.get("DRA_SHARED", Path(__file__).parents[4] / "shared")) / "captures/amd"
pytestmark = pytest.mark.skipif(not CAPTURES.is_dir(), reason="the captures lie beside the repository")

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


def hardware(capture: str) -> AmdHardware:
    folder = CAPTURES / capture / "sys"
    if not folder.is_dir():
        pytest.skip(f"the capture {capture} is not here")
    return AmdHardware(Roots(sys=str(folder), dev="/nonexistent"))


def gpus(capture: str) -> list[AmdGpu]:
    return [gpu for gpu in hardware(capture).discover().gpus if isinstance(gpu, AmdGpu)]


def names(capture: str) -> list[str]:
    return [device.name for device in build_inventory(hardware(capture).discover()).devices]


@pytest.mark.parametrize("capture", ONE)
def test_a_machine_with_one_gpu_has_one_device(capture: str) -> None:
    (gpu,) = gpus(capture)
    found = gpu.product_name, gpu.memory_bytes, gpu.architecture_target, gpu.compute_units
    assert (*names(capture), *found) == ONE[capture]


def test_two_nodes_of_the_topology_at_one_place_are_one_gpu_and_a_problem() -> None:
    problems = hardware("vega10-1gpu-doubled").discover().problems
    assert [problem.code for problem in problems] == ["hardware.identity-shared"]


def test_eight_mi210_are_in_two_hives_of_four() -> None:
    found = gpus("mi210-8gpu-2hives")
    hives = [gpu.link_domain for gpu in found]
    assert [gpu.compute_units for gpu in found] == [104] * 8
    assert sorted(hives.count(hive) for hive in set(hives)) == [4, 4]


def test_the_partitions_of_eight_mi300x_are_those_that_the_topology_lists() -> None:
    found = gpus("mi300x-cpx-nps1-8gpu")
    by_gpu = [
        [gpu for gpu in found if gpu.pci_address == address] for address in sorted({g.pci_address for g in found})
    ]
    assert [len(parts) for parts in by_gpu] == [8] * 7 + [7]
    assert {gpu.compute_units for gpu in found} == {38}
    assert [gpu.part for gpu in by_gpu[0]] == [f"xcp-{index}" for index in range(8)]
    assert sorted(gpu.minor for gpu in found) == list(range(128, 191))


def test_four_mi300a_in_spx_are_four_gpus_and_none_of_their_28_render_nodes_is_a_device() -> None:
    found = gpus("mi300a-spx-4gpu-xcp")
    assert [(gpu.pci_address, gpu.part, gpu.minor) for gpu in found] == [
        (f"000{number}:02:00.0", "", 128 + 8 * number) for number in range(4)
    ]
    assert {(gpu.compute_units, gpu.is_integrated) for gpu in found} == {(228, True)}


@pytest.mark.parametrize("capture", [*ONE, "mi210-8gpu-2hives", "mi300x-cpx-nps1-8gpu", "mi300a-spx-4gpu-xcp"])
def test_the_order_of_listings_changes_nothing(capture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    look = hardware(capture).discover
    expected, listdir, dice = look(), os.listdir, random.Random(capture)
    monkeypatch.setattr(os, "listdir", lambda folder: dice.sample(listed := listdir(folder), len(listed)))
    assert all(look() == expected for _ in range(40))


def test_devices_are_shown_in_the_form_of_the_api() -> None:
    hardware("radeon-strixpoint")  # skips the test where the capture is missing
    command = [sys.executable, "-m", "dra_driver", "devices", "--hardware", "amd", "--output", "json"]
    command += ["--sysfs-root", str(CAPTURES / "radeon-strixpoint/sys"), "--node-name", "laptop"]
    shown = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=120).stdout)
    assert shown["pool"] == "laptop/gpu.amd.com"
    (device,) = shown["devices"]
    assert device["attributes"]["type"] == {"string": "amdgpu"}
    assert device["attributes"]["productName"] == {"string": "AMD_Radeon_880M_Graphics"}
    assert device["capacity"]["computeUnits"] == {"value": "12"}
