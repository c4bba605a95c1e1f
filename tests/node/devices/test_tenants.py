"""Tenants: with mps.tenants=namespace each device that is shared by MPS is offered to one namespace from the start."""

from dataclasses import replace

import pytest

from dra_driver.base.names import gpu_name
from dra_driver.base.wire import DeviceType, MpsSettings, ShareMode, Tenants
from dra_driver.node.devices.build import build_inventory
from dra_driver.node.devices.offering import Inventory
from dra_driver.node.devices.partitions import MigPolicy, Ownership
from dra_driver.node.devices.rules import DeviceMatch, Portion, SharingRule, SharingRules
from tests.support.facts import FULL_GPU, PARTITION, facts

GPUS = tuple(
    replace(FULL_GPU, uuid=f"GPU-{index}", pci_address=f"0000:0{index}:00.0", minor=index) for index in range(4)
)
NAMES = tuple(gpu_name(gpu.pci_address) for gpu in GPUS)
RULE = SharingRule(
    "teams",
    DeviceMatch(types=(DeviceType.GPU,)),
    ShareMode.REPLICAS,
    4,
    settings=MpsSettings(multi_user=True),
    namespaces=("team-a", "team-b"),
)


def inventory(*rules: SharingRule, gpus=GPUS, tenants=(), in_shares=()) -> Inventory:
    ownership = Ownership(
        held=frozenset(in_shares), forms=frozenset((name, True) for name in in_shares), tenants=frozenset(tenants)
    )
    return build_inventory(
        facts(*gpus), MigPolicy(ownership=ownership), SharingRules(rules, "node", tenants=Tenants.NAMESPACE)
    )


def offered(found: Inventory) -> dict[str, str]:
    return {device.name: str(device.attributes.get("tenant", "")) for device in found.devices}


def test_devices_are_assigned_to_the_namespaces_in_turn_in_every_form():
    found = inventory(RULE)
    assert offered(found) == dict(zip(NAMES, ("team-a", "team-b", "team-a", "team-b"), strict=True))
    for name, replicas in found.offering.instead.items():
        assert {r.attributes["tenant"] for r in replicas} == {offered(found)[name]}
        assert {r.share.tenant for r in replicas} == {offered(found)[name]}
    assert found.problems == ()


def test_each_rule_starts_with_its_first_namespace_and_other_shares_are_for_everybody():
    first = replace(RULE, match=DeviceMatch(devices=(NAMES[0],)), namespaces=("team-c",))
    plain = SharingRule("plain", DeviceMatch(devices=(NAMES[1],)), ShareMode.REPLICAS, 2)
    found = inventory(first, plain, RULE)
    assert offered(found) == dict(zip(NAMES, ("team-c", "", "team-a", "team-b"), strict=True))
    assert "tenant" not in found.by_name[NAMES[1]].attributes


def test_partitions_are_assigned_in_turn_too():
    parts = tuple(replace(PARTITION, uuid=f"MIG-{start}", start=start) for start in range(3))
    partitioned = replace(FULL_GPU, mig_enabled=True, partitions=parts)
    rule = replace(RULE, match=DeviceMatch(types=(DeviceType.MIG,)))
    assert sorted(offered(inventory(rule, gpus=[partitioned])).values()) == ["team-a", "team-a", "team-b"]


def test_shares_by_memory_are_for_one_namespace_as_well():
    rule = replace(RULE, mode=ShareMode.MEMORY, portion=Portion(10 << 30, 1 << 30, 1 << 30))
    assert offered(inventory(rule))[NAMES[1]] == "team-b"


def test_a_namespace_for_which_no_device_is_left_is_reported():
    found = inventory(replace(RULE, namespaces=tuple(f"team-{i}" for i in range(6))))
    (problem,) = found.problems
    assert (problem.code, problem.subject) == ("inventory.share-tenants", "node")
    assert problem.message == "teams has no device left on this node for team-4, team-5"


def test_a_device_stays_with_the_namespace_that_holds_shares_of_it():
    found = inventory(RULE, tenants=[(NAMES[0], "team-b")], in_shares=[NAMES[0]])
    assert offered(found)[NAMES[0]] == "team-b"
    assert found.by_name[NAMES[0]].share.tenant == "team-b"
    assert found.waits_for_claims


@pytest.mark.parametrize("holders", [["team-a", "team-b"], ["gone"], [""]], ids=["several", "not listed", "unknown"])
def test_a_device_that_others_hold_is_offered_to_nobody_until_they_end(holders):
    found = inventory(RULE, tenants=[(NAMES[0], one) for one in holders], in_shares=[NAMES[0]])
    assert NAMES[0] not in offered(found)
    assert found.find(NAMES[0], "share") is not None, "an allocated share can still be prepared again"
    assert found.find(f"{NAMES[0]}-share-1", None) is not None
    assert found.waits_for_claims
    (problem,) = found.problems
    assert (problem.code, problem.subject) == ("inventory.share-held", NAMES[0])


def test_holders_of_shares_that_are_for_everybody_change_nothing():
    plain = replace(RULE, namespaces=(), settings=None)
    found = inventory(plain, tenants=[(NAMES[0], "team-x")], in_shares=[NAMES[0]])
    assert offered(found)[NAMES[0]] == ""
    assert not found.waits_for_claims
