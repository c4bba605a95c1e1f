import re
from dataclasses import replace

import pytest

from dra_driver.base import errors
from dra_driver.base.names import label_product
from dra_driver.base.wire import DeviceType
from dra_driver.hardware.nvidia.published import ATTRIBUTES, CAPACITIES, family
from dra_driver.hardware.simulated.profile import load_profile, profile_names
from dra_driver.hardware.simulated.profile_facts import facts_of
from dra_driver.hardware.vendors import Owner, ValueKind
from dra_driver.node.devices.build import build_inventory
from dra_driver.node.devices.describing import carried, rows_of
from tests.support.facts import FULL_GPU, PARTITION, facts, with_everything_known

ROWS = rows_of("nvidia")
NVIDIA_GPU = {
    "type": "string",
    "uuid": "string",
    "productName": "string",
    "brand": "string",
    "architecture": "string",
    "cudaComputeCapability": "version",
    "driverVersion": "version",
    "cudaDriverVersion": "version",
    "addressingMode": "string",
    "resource.kubernetes.io/pciBusID": "string",
    "resource.kubernetes.io/pcieRoot": "string",
    "resource.kubernetes.io/numaNode": "int",
}
NVIDIA_MIG = NVIDIA_GPU | {"parentUUID": "string", "profile": "string"}
NVIDIA_MIG_CAPACITIES = {
    "memory",
    "multiprocessors",
    "copyEngines",
    "decoders",
    "encoders",
    "jpegEngines",
    "ofaEngines",
}
OURS_BY_RANK = [
    "nvlinkDomain",
    "numaNode",
    "nvlinkCount",
    "migCapable",
    "eccEnabled",
    "serial",
    "vbiosVersion",
    "family",
    "labelProduct",
    "memoryBandwidth",
    "powerLimitMax",
    "smClockMax",
]


def kinds(device_type: DeviceType, owners: set[Owner]) -> dict[str, str]:
    return {
        row.name: row.kind.value
        for row in ROWS[device_type]
        if row.owner in owners and row.kind is not ValueKind.QUANTITY
    }


def test_whole_gpus_carry_every_name_of_nvidias_driver_with_its_kind():
    assert kinds(DeviceType.GPU, {Owner.VENDOR, Owner.KUBERNETES}) == NVIDIA_GPU


def test_partitions_carry_every_name_of_nvidias_driver_with_its_kind():
    assert kinds(DeviceType.MIG, {Owner.VENDOR, Owner.KUBERNETES}) == NVIDIA_MIG
    assert {row.name for row in ROWS[DeviceType.MIG] if row.kind is ValueKind.QUANTITY} == NVIDIA_MIG_CAPACITIES


def test_attributes_of_our_own_are_ranked_on_whole_gpus():
    ours = sorted((row for row in ROWS[DeviceType.GPU] if row.owner is Owner.OURS), key=lambda row: row.rank)
    assert [row.name for row in ours] == OURS_BY_RANK
    assert [row.rank for row in ours] == list(range(1, 13))


def test_partitions_carry_only_three_attributes_of_our_own():
    assert {row.name for row in ROWS[DeviceType.MIG] if row.owner is Owner.OURS} == {
        "nvlinkDomain",
        "numaNode",
        "family",
    }


def test_attributes_of_our_own_are_dropped_by_rank_when_the_limit_is_lower(monkeypatch):
    monkeypatch.setattr(errors, "DEVICE_ATTRIBUTES_AND_CAPACITIES", 15)
    names = [row.name for row in carried((*ATTRIBUTES, *CAPACITIES), DeviceType.GPU)]
    assert len(names) == 15
    assert {"nvlinkDomain", "numaNode"} <= set(names)
    assert set(NVIDIA_GPU) <= set(names)
    assert "nvlinkCount" not in names


def test_every_name_is_one_the_api_accepts():
    for row in (*ATTRIBUTES, *CAPACITIES):
        domain, _, name = row.name.rpartition("/")
        assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,31}", name), row.name
        assert domain in {"", "resource.kubernetes.io"}


def test_no_name_is_declared_twice_for_one_device_type():
    for rows in ROWS.values():
        assert len({row.name for row in rows}) == len(rows)


@pytest.mark.parametrize("word", ["mode", "current", "state", "utilization", "temperature", "used", "enforced"])
def test_nothing_that_a_claim_could_change_is_published(word):
    assert not [
        row.name for row in (*ATTRIBUTES, *CAPACITIES) if word in row.name.lower() and row.name != "addressingMode"
    ]


@pytest.mark.parametrize("profile", profile_names())
def test_the_worst_case_of_every_shipped_profile_fits_the_api(profile):
    found = facts_of(load_profile(profile), "a-node")
    worst = replace(found, gpus=tuple(with_everything_known(gpu) for gpu in found.gpus))
    inventory = build_inventory(worst)
    assert not [problem for problem in inventory.problems if problem.code.startswith("inventory.")]
    assert 0 < len(inventory.devices) <= errors.SLICE_DEVICES
    names = {kind: set() for kind in DeviceType}
    for device in inventory.devices:
        assert len(device.attributes) + len(device.capacity) <= errors.DEVICE_ATTRIBUTES_AND_CAPACITIES
        names[device.type].add(frozenset(device.attributes))
    assert all(len(sets) <= 1 for sets in names.values()), "the same names for all devices of a type"


def test_a_partition_of_a_whole_gpu_fills_all_32_places():
    whole = replace(PARTITION, profile="7g.80gb", gi_profile_id=0, start=0, size=8)
    inventory = build_inventory(facts(replace(FULL_GPU, mig_enabled=True, partitions=(whole,))))
    (device,) = inventory.devices
    assert len(device.attributes) + len(device.capacity) == 32
    assert not inventory.problems


@pytest.mark.parametrize(
    ("architecture", "capability", "expected"),
    [
        ("Hopper", None, "hopper"),
        ("Ada Lovelace", None, "ada-lovelace"),
        ("Rubin", "99.0.0", "rubin"),
        (None, "7.0.0", "volta"),
        (None, "7.5.0", "turing"),
        (None, "8.6.0", "ampere"),
        ("Unknown", "8.9.0", "ada-lovelace"),
        (None, "12.0.0", "blackwell"),
        (None, "42.0.0", None),
        (None, "nonsense", None),
        (None, None, None),
    ],
)
def test_family_is_named_as_feature_discovery_names_it(architecture, capability, expected):
    assert family(replace(FULL_GPU, architecture=architecture, compute_capability=capability)) == expected


@pytest.mark.parametrize(
    ("product", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", "NVIDIA-H100-80GB-HBM3"),
        ("Tesla  T4", "Tesla-T4"),
        ("NVIDIA A100-SXM4-40GB (engineering/sample)", "NVIDIA-A100-SXM4-40GB-engineeringsample"),
        ("™", None),
        (None, None),
    ],
)
def test_label_product_is_sanitised_as_feature_discovery_does(product, expected):
    assert label_product(product) == expected
