"""A vendor with names of its own, whose hardware divides its GPUs: what it measures is published and added up."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from dra_driver.hardware.facts import Facts, GpuFacts
from dra_driver.hardware.metered import FamilyHead, Measure, MeterReport, MetricName, MetricNames, Reading, SampleKind
from dra_driver.node.claims.allocated import AllocatedClaim, AllocatedDevice
from dra_driver.node.devices.build import build_inventory
from dra_driver.node.ledger.record import ClaimRecord, ClaimState, record_of_claim
from dra_driver.node.metering.billing import charges_of
from dra_driver.node.metering.holders import holders_of, subject_of
from dra_driver.node.metering.series import LabelStyle, MeterSnapshot, gpus_of, lines_of
from tests.support.metering.snapshots import samples

FAN = "fanRpm"
NAMES = MetricNames(
    (
        MetricName(FamilyHead("gpu_power", SampleKind.GAUGE, "Watts."), Measure.POWER_W),
        MetricName(FamilyHead("gpu_fan", SampleKind.GAUGE, "Turns a minute."), FAN),
        MetricName(FamilyHead("gpu_used_vram", SampleKind.GAUGE, "Memory."), Measure.MEMORY_USED_BYTES, 1e-6),
    ),
    gpu_labels=lambda index, gpu: (("gpu_id", str(index)), ("part", gpu.part)),
    fields={"driver_version": lambda _, version: version},
)


@dataclass(frozen=True, slots=True)
class AmdLike(GpuFacts):
    vendor: ClassVar[str] = "amd"


def gpu(address, number=None, parts=0):
    part = "cpx-all" if parts else "" if number is None else f"cpx-{number}"
    return AmdLike(f"uid-{address}-{part}", address, number or 0, 1 << 30, "Card", part=part, parts=parts)


FIRST, SECOND = "0000:03:00.0", "0000:04:00.0"
GPUS = (gpu(FIRST, parts=4), *(gpu(FIRST, number) for number in range(4)), gpu(SECOND))


@pytest.fixture
def inventory():
    return build_inventory(Facts("amd", GPUS, driver_version="6.10.5"))


def record(*devices):
    found = tuple(AllocatedDevice("r", "node-1/gpu.amd.com", name) for name in devices)
    claim = AllocatedClaim("uid", "team", "claim", found)
    return ClaimRecord("uid", "team", "claim", ClaimState.PREPARED, "boot", record_of_claim(claim), ())


def named(inventory, part, address=FIRST):
    return next(one for one in inventory.by_name.values() if one.gpu.part == part and one.gpu.pci_address == address)


def test_series_have_the_vendor_s_names_and_labels_and_each_part_its_own(inventory):
    readings = (
        Reading(FIRST, 1.0, {Measure.POWER_W: 700.0, FAN: 900.0}),
        *(Reading(FIRST, 1.0, {Measure.MEMORY_USED_BYTES: 1e6 * number}, number) for number in range(4)),
        Reading(SECOND, 1.0, {Measure.POWER_W: 90.0}),
    )
    style = LabelStyle("node-1", "gpu.amd.com", NAMES, "hostname", ("driver_version",))
    snapshot = MeterSnapshot(gpus_of(inventory), "6.10.5", MeterReport(readings), {}, style, Path("/nonexistent"))
    found = samples(lines_of(NAMES.names, snapshot))
    assert [(one.labels["gpu_id"], one.value) for one in found if one.name == "gpu_power"] == [("0", 700), ("4", 90)]
    assert [one.labels["part"] for one in found if one.name == "gpu_used_vram"] == [f"cpx-{n}" for n in range(4)]
    assert [one.value for one in found if one.name == "gpu_fan"] == [900]
    assert found[0].labels["driver_version"] == "6.10.5"


def test_a_claim_of_a_part_holds_that_part_alone(inventory):
    part = named(inventory, "cpx-2")
    assert subject_of(part) == (FIRST, 2)
    assert subject_of(named(inventory, "cpx-all")) == (FIRST, None)
    held = holders_of([record(part.name)], inventory, {})
    assert [(key, [one.name for one in found]) for key, found in held.items()] == [((FIRST, 2), ["claim"])]


def test_a_part_counts_as_its_part_of_the_gpu_and_all_parts_as_the_gpu(inventory):
    def charge(part):
        (found,) = charges_of("team", record(named(inventory, part).name).allocation, inventory)
        return found.key.profile, found.weight, found.gpu_part

    assert charge("cpx-1") == ("cpx", 1.0, 0.25)
    assert charge("cpx-all") == ("gpu", 1.0, 1.0)
