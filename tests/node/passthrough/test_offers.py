"""How a GPU for containers and virtual machines is offered, depending on the scheduler and on what claims hold."""

from dataclasses import replace

import pytest

from dra_driver.base.wire import DeviceType
from dra_driver.hardware.facts import MigProfile, PassthroughFacts
from dra_driver.node.devices.build import build_inventory
from dra_driver.node.devices.offering import ALL_KEPT, KeptFields
from dra_driver.node.devices.partitions import MigPolicy, Ownership
from tests.support.facts import FULL_GPU, PARTITION, facts

PROFILES = (
    MigProfile("1g.10gb", 19, 1, 1, (0, 1, 2, 3, 4, 5, 6), 9984 << 20, 16, 1, 1, 0, 1, 0, 7),
    MigProfile("7g.80gb", 0, 7, 8, (0,), 81152 << 20, 132, 8, 7, 0, 7, 1, 1),
)
UNCOUNTED = KeptFields(counters=False)
WHOLE, PASSED = "gpu-0000-65-00-0", "gpu-0000-65-00-0-vfio"
OTHER = replace(FULL_GPU, pci_address="0000:66:00.0", uuid="GPU-2", minor=4)


def named(gpu=FULL_GPU, **more):
    return replace(gpu, passthrough=PassthroughFacts(addressable_bytes=128 << 30, **more))


def built(gpu, *, held=(), is_dynamic=False):
    ownership = Ownership(held=frozenset(held))
    return build_inventory(facts(gpu, OTHER), MigPolicy(is_dynamic, ownership=ownership))


def offered(inventory, keeps=ALL_KEPT):
    return {d.name for d in inventory.offering.for_server(keeps).devices if d.gpu.pci_address == FULL_GPU.pci_address}


def fit_together(inventory, *names):
    """Return whether the counters let these devices be allocated together."""
    sets = {name: dict(counters) for name, counters in inventory.offering.counter_sets.items()}
    for device in inventory.devices:
        if device.name in names:
            for counter, amount in device.counters.items():
                sets[device.counter_set][counter] -= amount
    return all(left >= 0 for counters in sets.values() for left in counters.values())


def test_a_scheduler_with_counters_is_offered_both_devices_and_can_allocate_one():
    inventory = built(named())
    assert offered(inventory) == {WHOLE, PASSED}
    assert fit_together(inventory, WHOLE)
    assert fit_together(inventory, PASSED)
    assert not fit_together(inventory, WHOLE, PASSED)


def test_partitions_on_demand_and_the_device_for_virtual_machines_exclude_each_other():
    gpu = named(replace(FULL_GPU, mig_profiles=PROFILES, mig_toggles_without_reset=True))
    inventory = built(gpu, is_dynamic=True)
    partition = next(name for name in offered(inventory) if "-mig-" in name)
    assert {WHOLE, PASSED, partition} <= offered(inventory)
    assert fit_together(inventory, PASSED)
    assert not fit_together(inventory, PASSED, partition)
    assert not fit_together(inventory, PASSED, WHOLE)


@pytest.mark.parametrize(
    ("held", "expected"), [((), {PASSED}), ((WHOLE,), {WHOLE}), ((PASSED,), {PASSED}), ((f"{WHOLE}-share-0",), {WHOLE})]
)
def test_a_scheduler_without_counters_is_offered_the_device_that_a_claim_holds(held, expected):
    inventory = built(named(), held=held)
    assert offered(inventory, UNCOUNTED) == expected
    assert inventory.waits_for_claims is (expected == {WHOLE})


def test_a_gpu_for_virtual_machines_alone_is_never_offered_to_containers():
    for keeps in (ALL_KEPT, UNCOUNTED):
        assert offered(built(named(is_only_passed=True)), keeps) == {PASSED}


def test_a_gpu_for_virtual_machines_alone_stays_with_the_container_that_has_it_until_that_ends():
    inventory = built(named(is_only_passed=True), held=(WHOLE,))
    assert offered(inventory) == {WHOLE}
    assert inventory.waits_for_claims


def test_while_a_virtual_machine_has_the_gpu_nothing_else_of_it_is_offered():
    inventory = built(named(is_away=True), held=(PASSED,))
    for keeps in (ALL_KEPT, UNCOUNTED):
        assert offered(inventory, keeps) == {PASSED}


def test_other_gpus_stay_as_they_are():
    assert "gpu-0000-66-00-0" in {d.name for d in built(named()).offering.for_server(UNCOUNTED).devices}


def test_a_gpu_with_an_administrators_partitions_is_not_offered_to_virtual_machines():
    gpu = named(replace(FULL_GPU, mig_enabled=True, partitions=(PARTITION,)))
    inventory = built(gpu)
    assert PASSED not in offered(inventory)
    assert [(p.code, "partitions of an administrator" in p.message) for p in inventory.problems] == [
        ("inventory.not-passed", True)
    ]


def test_a_gpu_for_virtual_machines_has_the_attributes_of_nvidias_driver_and_no_others():
    gpu = replace(FULL_GPU, pci_id=0x233010DE)
    device = next(d for d in built(named(gpu, has_iommufd=True)).devices if d.name == PASSED)
    assert device.type is DeviceType.VFIO
    standard = "resource.kubernetes.io/"
    assert dict(device.attributes) == {
        "type": "vfio",
        "uuid": "8533fd84-02c8-5350-bd10-3cf08fc7bcd0",
        "productName": "NVIDIA H100 80GB HBM3",
        "deviceID": "0x2330",
        "vendorID": "0x10de",
        "iommuFDEnabled": True,
        f"{standard}pciBusID": "0000:65:00.0",
        f"{standard}pcieRoot": "pci0000:64",
        f"{standard}numaNode": 1,
    }
    assert dict(device.capacity) == {"addressableMemory": 128 << 30}
