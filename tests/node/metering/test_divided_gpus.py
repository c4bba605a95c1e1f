"""GPUs that the hardware itself divides: which claims their series name, and how their parts are labelled."""

from dataclasses import replace
from pathlib import Path

import pytest

from dra_driver.hardware.amd.hardware import AmdHardware
from dra_driver.hardware.amd.metering import NAMES
from dra_driver.hardware.metered import Measure, MeterReport, Reading
from dra_driver.node.devices.build import build_inventory
from dra_driver.node.devices.offering import Inventory
from dra_driver.node.metering.holders import Holder, subject_of
from dra_driver.node.metering.series import LabelStyle, MeterSnapshot, claim_lines, gpus_of, lines_of
from tests.support.metering.snapshots import holder, samples
from tests.support.nodes.amd_tree import AmdCard, AmdTree

CARD = AmdCard("0000:05:00.0", modes=("DPX", "NPS1"), partitions=(128, 129))
WHOLE, PARTS = "gpu-0000-05-00-0-dpx-all", ("gpu-0000-05-00-0-dpx-0", "gpu-0000-05-00-0-dpx-1")


@pytest.fixture
def inventory(tmp_path: Path) -> Inventory:
    return build_inventory(AmdHardware(AmdTree(tmp_path).write(CARD).roots).discover())


def snapshot(inventory: Inventory, *held: str) -> MeterSnapshot:
    holders: dict[tuple[str, int | None], tuple[Holder, ...]] = {}
    for number, name in enumerate(held):
        subject = subject_of(inventory.find(name, None))
        assert subject is not None
        holders[subject] = (replace(holder(f"claim-{number}", device=name), pool="node-1/gpu.amd.com"),)
    report = MeterReport((Reading(CARD.address, 1.0, {Measure.POWER_W: 500.0}),))
    style = LabelStyle("node-1", "gpu.amd.com", NAMES, "hostname")
    return MeterSnapshot(gpus_of(inventory), "6.16.13", report, holders, style, Path("/nonexistent"))


def test_the_power_of_a_divided_gpu_names_no_claim_unless_one_has_all_parts(inventory: Inventory) -> None:
    (power,) = [one for one in samples(lines_of(NAMES.names, snapshot(inventory, PARTS[0]))) if "usage" in one.name]
    assert (power.value, "dra_claim_uid" in power.labels) == (500, False)
    assert power.labels["gpu_compute_partition_type"] == "dpx"
    (power,) = [one for one in samples(lines_of(NAMES.names, snapshot(inventory, WHOLE))) if "usage" in one.name]
    assert power.labels["dra_device_name"] == WHOLE


def test_a_claim_of_a_part_is_shown_with_its_gpu_and_the_number_of_the_part(inventory: Inventory) -> None:
    found = samples(claim_lines(snapshot(inventory, *PARTS)))
    assert [(one.labels["gpu_id"], one.labels["gpu_partition_id"]) for one in found] == [("0", "0"), ("1", "1")]


def test_a_divided_gpu_is_measured_even_if_no_device_covers_all_its_parts(tmp_path: Path) -> None:
    tree = AmdTree(tmp_path).write(replace(CARD, modes=None))
    (power,) = [
        one
        for one in samples(lines_of(NAMES.names, snapshot(build_inventory(AmdHardware(tree.roots).discover()))))
        if one.name == "gpu_power_usage"
    ]
    assert (power.value, "gpu_partition_id" in power.labels) == (500, False)
