import json
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.base import errors
from dra_driver.base.versions import Semver
from dra_driver.base.wire import DeviceType
from dra_driver.hardware.facts import Facts, Problem
from dra_driver.node.devices.build import build_inventory
from dra_driver.node.devices.describing import device_wire
from tests.support.facts import FULL_GPU, PARTITION, any_facts, facts


def only(inventory):
    (device,) = inventory.devices
    return device


def test_a_whole_gpu_is_published_under_its_pci_address():
    device = only(build_inventory(facts(FULL_GPU)))
    assert (device.name, device.type) == ("gpu-0000-65-00-0", DeviceType.GPU)
    assert device.attributes["uuid"] == FULL_GPU.uuid
    assert device.attributes["driverVersion"] == ("version", "580.126.20")
    assert device.attributes["numaNode"] == device.attributes["resource.kubernetes.io/numaNode"] == 1
    assert device.attributes["memoryBandwidth"] == 3_350_000_000_000
    assert device.attributes["family"] == "hopper"
    assert device.attributes["labelProduct"] == "NVIDIA-H100-80GB-HBM3"
    assert dict(device.capacity) == {"memory": 81559 << 20}
    assert device.gpu is FULL_GPU


def test_a_gpu_in_mig_mode_publishes_its_partitions_and_not_itself():
    gpu = replace(FULL_GPU, mig_enabled=True, partitions=(PARTITION, replace(PARTITION, uuid="MIG-2", start=3)))
    inventory = build_inventory(facts(gpu))
    assert [device.name for device in inventory.devices] == [
        "gpu-0000-65-00-0-mig-1g10gb-19-2",
        "gpu-0000-65-00-0-mig-1g10gb-19-3",
    ]
    first = inventory.devices[0]
    assert first.attributes["type"] == "mig"
    assert first.attributes["uuid"] == PARTITION.uuid
    assert first.attributes["parentUUID"] == FULL_GPU.uuid
    assert first.attributes["profile"] == "1g.10gb"
    assert first.attributes["resource.kubernetes.io/pcieRoot"] == "pci0000:64"
    assert first.capacity == {
        "memory": 9984 << 20,
        "multiprocessors": 16,
        "copyEngines": 1,
        "decoders": 1,
        "encoders": 0,
        "jpegEngines": 1,
        "ofaEngines": 0,
        "memorySlice2": 1,
    }
    assert first.partition is PARTITION


def test_a_gpu_in_mig_mode_without_partitions_publishes_nothing():
    assert build_inventory(facts(replace(FULL_GPU, mig_enabled=True))).devices == ()


def test_unknown_facts_are_left_out_without_a_problem():
    gpu = replace(FULL_GPU, serial=None, memory_bytes=None, link_domain=None)
    inventory = build_inventory(facts(gpu))
    assert not inventory.problems
    assert not {"serial", "nvlinkDomain"} & set(only(inventory).attributes)
    assert not only(inventory).capacity


def test_false_and_zero_are_published():
    attributes = only(build_inventory(facts(replace(FULL_GPU, ecc_enabled=False, numa_node=0)))).attributes
    assert attributes["eccEnabled"] is False
    assert attributes["numaNode"] == 0


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"serial": "x" * 65}, "serial"),
        ({"serial": "é" * 33}, "serial"),
        ({"serial": ""}, "serial"),
        ({"brand": "\ud800"}, "brand"),
        ({"compute_capability": "9.0"}, "cudaComputeCapability"),
        ({"compute_capability": "09.0.0"}, "cudaComputeCapability"),
        ({"nvlink_count": 2**63}, "nvlinkCount"),
        ({"power_limit_max_w": 700.5}, "powerLimitMax"),
        ({"ecc_enabled": 1}, "eccEnabled"),
        ({"memory_bytes": -1}, "memory"),
    ],
)
def test_a_value_that_the_api_would_refuse_is_left_out_and_reported(change, name):
    inventory = build_inventory(facts(replace(FULL_GPU, **change)))
    device = only(inventory)
    assert name not in device.attributes
    assert name not in device.capacity
    (problem,) = inventory.problems
    assert (problem.code, problem.subject) == ("inventory.value-unfit", "0000:65:00.0")
    assert problem.message.startswith(f"{name} is left out: ")


def test_a_text_of_exactly_64_bytes_is_published():
    assert only(build_inventory(facts(replace(FULL_GPU, serial="é" * 32)))).attributes["serial"] == "é" * 32


def test_compute_instances_of_one_gpu_instance_have_names_of_their_own():
    parts = tuple(
        replace(PARTITION, uuid=f"MIG-{ci}", profile="1c.3g.40gb", gi_profile_id=9, ci_id=ci) for ci in range(3)
    )
    inventory = build_inventory(facts(replace(FULL_GPU, mig_enabled=True, partitions=parts)))
    assert [d.name for d in inventory.devices] == [f"gpu-0000-65-00-0-mig-1c3g40gb-9-2-{ci}" for ci in range(3)]
    assert not inventory.problems


def test_the_second_of_two_devices_with_one_name_is_dropped_and_reported():
    second = replace(FULL_GPU, uuid="GPU-other", minor=4)
    inventory = build_inventory(facts(FULL_GPU, second))
    assert only(inventory).gpu is FULL_GPU
    assert [problem.code for problem in inventory.problems] == ["inventory.name-taken"]


def test_a_device_whose_name_the_api_would_refuse_is_dropped_and_reported():
    odd = replace(PARTITION, profile="1g.10gb (custom)")
    inventory = build_inventory(facts(replace(FULL_GPU, mig_enabled=True, partitions=(odd,))))
    assert not inventory.devices
    assert [(p.code, p.subject) for p in inventory.problems] == [("inventory.name-invalid", PARTITION.uuid)]


def test_a_partition_of_twelve_slices_leaves_out_the_highest_and_reports_it():
    whole = replace(PARTITION, profile="4g.96gb", start=0, size=12)
    inventory = build_inventory(facts(replace(FULL_GPU, mig_enabled=True, partitions=(whole,))))
    slices = {name for name in only(inventory).capacity if name.startswith("memorySlice")}
    assert slices == {f"memorySlice{index}" for index in range(8)}
    assert [problem.code for problem in inventory.problems] == ["inventory.too-many-values"]
    assert "memorySlice8 and above" in inventory.problems[0].message


def test_problems_and_the_reason_for_waiting_are_passed_on():
    problem = Problem("hardware.gpu-lost", "0000:17:00.0", "the GPU is lost")
    inventory = build_inventory(Facts("test", problems=(problem, problem), waiting_for="the driver"))
    assert inventory.problems == (problem,)
    assert inventory.waiting_for == "the driver"


def test_devices_are_sorted_by_name_in_whatever_order_the_gpus_are_found():
    gpus = [replace(FULL_GPU, uuid=f"GPU-{bus}", pci_address=f"0000:{bus}:00.0") for bus in ("c1", "0a", "65")]
    inventories = [build_inventory(facts(*order)) for order in (gpus, gpus[::-1])]
    assert inventories[0] == inventories[1]
    assert [d.name for d in inventories[0].devices] == ["gpu-0000-0a-00-0", "gpu-0000-65-00-0", "gpu-0000-c1-00-0"]


def test_the_loss_of_one_gpu_renames_no_other():
    gpus = [replace(FULL_GPU, uuid=f"GPU-{bus}", pci_address=f"0000:{bus}:00.0") for bus in ("0a", "65", "c1")]
    before = build_inventory(facts(*gpus)).by_name
    after = build_inventory(facts(gpus[0], gpus[2])).by_name
    assert set(after) == set(before) - {"gpu-0000-65-00-0"}
    assert all(after[name] == before[name] for name in after)


def is_accepted_attribute(value):
    ((kind, content),) = value.items()
    if kind == "string":
        return len(content.encode()) <= errors.ATTRIBUTE_STRING_BYTES
    if kind == "version":
        return len(content) <= errors.ATTRIBUTE_STRING_BYTES and bool(Semver.parse(content))
    if kind == "bool":
        return isinstance(content, bool)
    return kind == "int" and isinstance(content, int) and -(2**63) <= content < 2**63


@settings(deadline=None)
@given(any_facts)
def test_any_facts_give_an_inventory_that_the_api_accepts(found):
    inventory = build_inventory(found)
    devices = [device_wire(device) for device in inventory.devices]
    json.dumps(devices)
    assert [d["name"] for d in devices] == sorted({d["name"] for d in devices})
    for device in devices:
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", device["name"])
        values = device.get("attributes", {})
        assert len(values) + len(device.get("capacity", {})) <= errors.DEVICE_ATTRIBUTES_AND_CAPACITIES
        assert all(is_accepted_attribute(value) for value in values.values())
        for name in (*values, *device.get("capacity", {})):
            assert re.fullmatch(r"(resource\.kubernetes\.io/)?[A-Za-z_][A-Za-z0-9_]{0,31}", name)
    assert set(found.problems) <= set(inventory.problems)


@settings(deadline=None)
@given(any_facts, st.randoms(use_true_random=False))
def test_the_order_of_gpus_with_distinct_addresses_does_not_matter(found, random):
    gpus = list({gpu.pci_address: replace(gpu, partitions=()) for gpu in found.gpus}.values())
    shuffled = random.sample(gpus, len(gpus))
    names = [device.name for device in build_inventory(replace(found, gpus=tuple(gpus))).devices]
    if len({gpu.pci_address.replace(":", "-").replace(".", "-") for gpu in gpus}) == len(gpus):
        assert names == [device.name for device in build_inventory(replace(found, gpus=tuple(shuffled))).devices]
