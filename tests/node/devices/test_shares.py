"""Shares: how many fit and how large they are, judged by the allocator that the scheduler's rules are checked with."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.allocation.capacity import Arithmetic, consume, read_capacities
from dra_driver.base import errors
from dra_driver.base.wire import DeviceType, Interval, MpsSettings, ShareMode, Strategy, TimeSlicingSettings
from dra_driver.node.devices.build import build_inventory
from dra_driver.node.devices.describing import Device, device_wire
from dra_driver.node.devices.offering import KeptFields
from dra_driver.node.devices.partitions import MigPolicy, Ownership
from dra_driver.node.devices.rules import DeviceMatch, Portion, SharingRule, SharingRules
from dra_driver.simulator.shapes import Faults, RuleContext
from dra_driver.simulator.slice_rules import check_device
from tests.support.facts import FULL_GPU, PARTITION, facts
from tests.support.partitionable import PROFILES

MIB = 1 << 20
NAME = "gpu-0000-65-00-0"
PART = f"{NAME}-mig-1g10gb-19-2"
PARTITIONED = replace(FULL_GPU, mig_enabled=True, partitions=(PARTITION,))
REPLICAS = SharingRule("four", mode=ShareMode.REPLICAS, replicas=4)
MEMORY = SharingRule("memory", mode=ShareMode.MEMORY, portion=Portion(10 << 30, 1 << 30, 1 << 30))


def shared(*rules: SharingRule, gpu=FULL_GPU, held=(), in_shares=(), **policy):
    forms = frozenset([*((name, False) for name in held), *((name, True) for name in in_shares)])
    ownership = Ownership(held=frozenset([*held, *in_shares]), forms=forms)
    return build_inventory(facts(gpu), MigPolicy(ownership=ownership, **policy), SharingRules(rules, "node"))


def fit(device: Device, asked: dict[str, str]) -> int:
    """Count the shares of one device that the scheduler hands out for one and the same request."""
    capacities = read_capacities(device_wire(device))
    one = consume(capacities, asked, Arithmetic())
    if one is None:
        return 0
    counts = [int(c.total // one[c.name].amount) for c in capacities if one[c.name].amount]
    return min(counts)


def faults_of(device: Device) -> list[str]:
    found = Faults()
    context = RuleContext(36, frozenset(), "2026-11-21T12:00:00Z", lambda _: {})
    check_device(device_wire(device), "spec.devices[0]", {}, context, found)
    return [str(cause) for cause in found.causes]


sizes = st.integers(1, 200_000).map(lambda mib: mib * MIB)


@given(total=st.integers(1, 1 << 40), count=st.integers(2, 128))
def test_exactly_as_many_replicas_fit_as_are_configured(total, count):
    inventory = shared(replace(REPLICAS, replicas=count), gpu=replace(FULL_GPU, memory_bytes=total))
    (device,) = inventory.devices
    if total < count * MIB:
        assert device.type is DeviceType.GPU
        assert inventory.problems[0].code == "inventory.share-unfit"
        return
    assert fit(device, {}) == fit(device, {"memory": "1"}) == count
    assert fit(device, {"memory": f"{total // count + MIB}"}) == 0, "a replica is never larger than its part"
    replicas = inventory.offering.instead[NAME]
    assert len({r.name for r in replicas}) == count
    assert sum(r.capacity["memory"] for r in replicas) <= total


@given(sizes, sizes, st.integers(0, 50), sizes, st.integers(0, 1 << 40))
def test_a_memory_share_is_rounded_up_to_a_step_and_never_exceeds_the_memory(total, least, steps, step, asked):
    portion = Portion(least + steps * step, least, step)
    inventory = shared(replace(MEMORY, portion=portion), gpu=replace(FULL_GPU, memory_bytes=total))
    (device,) = inventory.devices
    if device.type is DeviceType.GPU:
        assert inventory.problems[0].code == "inventory.share-unfit"
        return
    policy = device.policies["memory"]
    assert not faults_of(device)
    capacities = read_capacities(device_wire(device))
    taken = consume(capacities, {"memory": str(asked)}, Arithmetic())
    if asked > policy.maximum:
        assert taken is None
        return
    amount = taken["memory"].amount
    assert max(asked, least) <= amount <= policy.maximum <= total
    assert (amount - least) % step == 0
    assert amount - step < max(asked, least), "no more than one step is added"
    assert consume(capacities, {}, Arithmetic())["memory"].amount == portion.default
    assert fit(device, {}) == total // portion.default


@given(st.integers(1, 100), st.integers(1, 100), st.integers(0, 100))
def test_compute_shares_add_up_to_the_whole_and_no_more(least, step, asked):
    inventory = shared(SharingRule("c", mode=ShareMode.COMPUTE, portion=Portion(least, least, step)))
    (device,) = inventory.devices
    if device.type is DeviceType.GPU:
        assert least + step > 100
        return
    assert not faults_of(device)
    taken = consume(read_capacities(device_wire(device)), {"compute": str(asked)}, Arithmetic())
    if taken is not None:
        assert asked <= taken["compute"].amount <= 100
        assert taken["memory"].amount == 0
    assert fit(device, {}) == 100 // least


@pytest.mark.parametrize(
    "rule", [REPLICAS, MEMORY, SharingRule("c", mode=ShareMode.COMPUTE, portion=Portion(25, 5, 5))]
)
@pytest.mark.parametrize("gpu", [FULL_GPU, PARTITIONED])
def test_a_shared_device_is_accepted_by_the_api_and_every_capacity_has_a_policy(rule, gpu):
    if gpu is PARTITIONED and rule.mode is ShareMode.MEMORY:
        rule = replace(rule, portion=Portion(2 << 30, 1 << 30, 1 << 30))
    inventory = shared(rule, gpu=gpu)
    (device,) = inventory.devices
    assert device.type is (DeviceType.GPU_SHARE if gpu is FULL_GPU else DeviceType.MIG_SHARE)
    assert device.policies.keys() == device.capacity.keys()
    assert not faults_of(device)
    for one in (device, *inventory.offering.instead[device.name]):
        assert len(one.attributes) + len(one.capacity) <= errors.DEVICE_ATTRIBUTES_AND_CAPACITIES
        assert not faults_of(one)
        assert not any(name.startswith("memorySlice") for name in one.capacity) or one.share is None
    assert fit(device, {}) > 1


def test_seven_partitions_of_four_replicas_are_twenty_eight_shares():
    parts = tuple(replace(PARTITION, uuid=f"MIG-{i}", start=i, gi_id=i) for i in range(7))
    inventory = shared(REPLICAS, gpu=replace(FULL_GPU, mig_enabled=True, partitions=parts))
    assert sum(fit(device, {}) for device in inventory.devices) == 28
    replicas = inventory.offering.for_server(KeptFields(shares=False)).devices
    assert len({r.name for r in replicas}) == 28
    assert {r.type for r in replicas} == {DeviceType.MIG_SHARE}
    first = replicas[0]
    assert (first.name, first.capacity["memory"]) == (f"{NAME}-mig-1g10gb-19-0-share-0", 2496 * MIB)
    attributes = first.attributes
    assert (attributes["type"], attributes["replicaIndex"], attributes["replicas"]) == ("mig-share", 0, 4)
    assert (attributes["uuid"], attributes["parentUUID"]) == ("MIG-0", FULL_GPU.uuid)
    assert (attributes["sharingStrategy"], attributes["enforcement"]) == ("none", "none")


def test_without_a_mode_of_sharing_devices_stay_as_they_are():
    assert shared() == build_inventory(facts(FULL_GPU))
    assert shared(SharingRule("whole")) == shared()


def test_the_first_rule_that_matches_wins():
    whole = SharingRule("one stays whole", DeviceMatch(devices=(NAME,)))
    assert shared(whole, REPLICAS) == shared()
    assert shared(REPLICAS, whole).devices[0].type is DeviceType.GPU_SHARE


@pytest.mark.parametrize(
    ("match", "is_met"),
    [
        (DeviceMatch(), True),
        (DeviceMatch(nodes=("no*",)), True),
        (DeviceMatch(nodes=("other",)), False),
        (DeviceMatch(labels=(("pool", "a*"),)), True),
        (DeviceMatch(labels=(("pool", "b"),)), False),
        (DeviceMatch(labels=(("rack", "*"),)), False),
        (DeviceMatch(products=("*H100*",)), True),
        (DeviceMatch(products=("NVIDIA-H100-80GB-HBM3",)), True),
        (DeviceMatch(products=("*A100*",)), False),
        (DeviceMatch(types=(DeviceType.MIG,)), False),
        (DeviceMatch(profiles=("1g.10gb",)), False),
        (DeviceMatch(devices=("gpu-0000-65-*",), products=("*A100*",)), False),
        (DeviceMatch(ids=("0",)), True),
        (DeviceMatch(ids=(FULL_GPU.uuid,)), True),
        (DeviceMatch(ids=("1",)), False),
        (DeviceMatch(first=1), True),
        (DeviceMatch(first=0), False),
    ],
)
def test_a_rule_applies_to_devices_that_meet_all_its_conditions(match, is_met):
    rules = SharingRules((replace(REPLICAS, match=match),), "node", {"pool": "alpha"})
    (device,) = build_inventory(facts(FULL_GPU), sharing=rules).devices
    assert (device.type is DeviceType.GPU_SHARE) is is_met


def test_partitions_are_matched_by_profile_and_by_their_index():
    for match in (DeviceMatch(profiles=("1g.*",)), DeviceMatch(ids=("0:0",)), DeviceMatch(types=(DeviceType.MIG,))):
        assert shared(replace(REPLICAS, match=match), gpu=PARTITIONED).devices[0].type is DeviceType.MIG_SHARE
    media = replace(PARTITION, profile="1g.10gb+me", gi_profile_id=20)
    assert (
        shared(
            replace(REPLICAS, match=DeviceMatch(profiles=("1g.10gb.me",))),
            gpu=replace(PARTITIONED, partitions=(media,)),
        )
        .devices[0]
        .share
    )


def test_devices_that_unknown_labels_could_match_stay_whole():
    rule = replace(REPLICAS, match=DeviceMatch(labels=(("pool", "a"),)))
    rules = SharingRules((rule, replace(REPLICAS, replicas=2)), "node", None)
    assert build_inventory(facts(FULL_GPU), sharing=rules).devices[0].type is DeviceType.GPU


# Devices that claims hold keep their form


def test_a_device_that_a_claim_has_whole_stays_whole_until_it_is_free():
    inventory = shared(REPLICAS, held=[NAME])
    assert [(d.name, d.type) for d in inventory.devices] == [(NAME, DeviceType.GPU)]
    assert inventory.offering.instead == {}
    assert inventory.find(NAME, None).type is DeviceType.GPU


def test_a_device_whose_replicas_are_held_stays_replicas():
    inventory = shared(REPLICAS, held=[f"{NAME}-share-2"])
    assert len(inventory.devices) == 4
    assert not any(device.policies for device in inventory.devices)
    assert inventory.find(f"{NAME}-share-2", None).share.index == 2


def test_a_device_that_is_held_in_shares_is_offered_only_in_shares():
    inventory = shared(REPLICAS, in_shares=[NAME])
    (device,) = inventory.devices
    assert device.policies
    assert inventory.offering.instead == {}
    assert inventory.find(NAME, "some share").share


@pytest.mark.parametrize(("held", "in_shares"), [([], [NAME]), ([f"{NAME}-share-0"], [])])
@pytest.mark.parametrize("rules", [(), (replace(MEMORY, portion=Portion(1 << 40, 1 << 40, 1 << 40)),)])
def test_shares_that_are_held_but_not_configured_any_more_hide_their_device(held, in_shares, rules):
    inventory = shared(*rules, held=held, in_shares=in_shares)
    assert inventory.devices == ()
    assert "inventory.share-held" in {problem.code for problem in inventory.problems}
    assert inventory.find(NAME, None) is not None


def test_an_allocation_is_found_in_the_form_in_which_it_was_made():
    inventory = shared(REPLICAS)
    assert inventory.find(NAME, "a share").policies
    assert inventory.find(NAME, None).type is DeviceType.GPU
    assert inventory.find(f"{NAME}-share-3", None).share.index == 3
    assert inventory.find(f"{NAME}-share-4", None) is None


# On demand


def test_a_gpu_that_is_shared_is_not_partitioned_on_demand(partitionable):
    inventory = shared(REPLICAS, gpu=partitionable, is_dynamic=True)
    assert [d.name for d in inventory.devices] == [NAME]
    assert inventory.offering.counter_sets == {}


@pytest.mark.parametrize(("held", "in_shares"), [([], [NAME]), ([f"{NAME}-share-0"], [])])
def test_a_gpu_that_is_held_in_shares_is_not_partitioned_on_demand_either(partitionable, held, in_shares):
    inventory = shared(gpu=partitionable, held=held, in_shares=in_shares, is_dynamic=True)
    assert (inventory.devices, inventory.offering.counter_sets) == ((), {})


def test_a_gpu_that_is_to_be_shared_waits_until_its_mig_mode_is_off(partitionable):
    gpu = replace(partitionable, mig_enabled=True)
    ours = Ownership(modes=frozenset({gpu.pci_address}))
    inventory = build_inventory(facts(gpu), MigPolicy(is_dynamic=True, ownership=ours), SharingRules((REPLICAS,), "n"))
    assert inventory.devices == ()
    assert inventory.find(NAME, "a share").policies


def test_partitions_that_are_made_on_demand_are_never_shared(partitionable):
    rule = replace(REPLICAS, match=DeviceMatch(types=(DeviceType.MIG,)))
    inventory = shared(rule, gpu=partitionable, is_dynamic=True)
    assert inventory.devices == shared(gpu=partitionable, is_dynamic=True).devices
    (problem,) = inventory.problems
    assert problem.code == "inventory.share-on-demand"
    assert "four" in problem.message


@pytest.fixture
def partitionable():
    return replace(FULL_GPU, mig_profiles=PROFILES, mig_toggles_without_reset=True)


# Settings


def settings_of(rule: SharingRule, gpu=FULL_GPU):
    inventory = shared(rule, gpu=gpu)
    (device,) = inventory.devices
    return device.share.settings, [d.share and d.share.settings for d in inventory.offering.instead[device.name]]


def test_an_mps_daemon_gives_each_replica_its_part_unless_configured_otherwise():
    many, each = settings_of(replace(REPLICAS, settings=MpsSettings()))
    assert many == MpsSettings(active_thread_percentage=25, pinned_memory_limit=20389 * MIB)
    assert each == [many] * 4
    configured = MpsSettings(active_thread_percentage=60, pinned_memory_limit=MIB, multi_user=True)
    assert settings_of(replace(REPLICAS, settings=configured))[0] == configured


def test_the_largest_share_is_the_ceiling_of_the_daemon():
    assert settings_of(replace(MEMORY, settings=MpsSettings()))[0] == MpsSettings(pinned_memory_limit=79 << 30)
    compute = SharingRule("c", mode=ShareMode.COMPUTE, portion=Portion(25, 5, 5, 50), settings=MpsSettings())
    assert settings_of(compute)[0] == MpsSettings(active_thread_percentage=50)


@pytest.mark.parametrize("key", [FULL_GPU.uuid, "0"])
def test_a_limit_for_one_device_overrides_the_limit_for_all(key):
    limits = MpsSettings(pinned_memory_limit=MIB, per_device_limits={key: 5 * MIB})
    assert settings_of(replace(REPLICAS, settings=limits))[0].pinned_memory_limit == 5 * MIB


def test_a_mig_device_has_no_interval_of_its_own():
    rule = replace(REPLICAS, settings=TimeSlicingSettings(Interval.LONG))
    assert settings_of(rule)[0] == TimeSlicingSettings(Interval.LONG)
    assert settings_of(rule, PARTITIONED)[0] == TimeSlicingSettings()


def test_the_strategy_and_its_enforcement_are_published():
    (device,) = shared(replace(REPLICAS, settings=MpsSettings())).devices
    assert (device.attributes["sharingStrategy"], device.attributes["enforcement"]) == (Strategy.MPS, "cooperative")
    (device,) = shared(replace(REPLICAS, settings=TimeSlicingSettings())).devices
    assert (device.attributes["sharingStrategy"], device.attributes["enforcement"]) == ("TimeSlicing", "none")


def test_limits_are_published_as_hard_only_for_rules_that_ask_for_it():
    able = replace(FULL_GPU, limits_memory=True)
    for rule in (replace(REPLICAS, is_hard=True), replace(MEMORY, is_hard=True, settings=MpsSettings())):
        inventory = shared(rule, gpu=able)
        offered = (*inventory.devices, *inventory.offering.instead[NAME])
        assert {device.attributes.get("enforcement") for device in offered} <= {"hard", None}
        assert inventory.devices[0].attributes["enforcement"] == "hard"
        assert inventory.problems == ()
    (soft,) = shared(REPLICAS, gpu=able).devices
    assert soft.attributes["enforcement"] == "none", "the rule does not ask for hard limits"


@pytest.mark.parametrize(
    ("gpu", "enforcement", "why"),
    [
        (FULL_GPU, "cooperative", "release 615"),
        (replace(PARTITIONED, limits_memory=True), "cooperative", "partitions"),
        (replace(FULL_GPU, limits_memory=True, memory_bytes=None), "cooperative", "no memory of its own"),
    ],
)
def test_hard_limits_that_the_driver_cannot_enforce_are_reported_and_not_published(gpu, enforcement, why):
    inventory = shared(replace(REPLICAS, is_hard=True, settings=MpsSettings()), gpu=gpu)
    assert {device.attributes["enforcement"] for device in inventory.devices} == {enforcement}
    (problem,) = inventory.problems
    assert problem.code == "inventory.share-not-hard"
    assert why in problem.message


def test_where_replicas_are_a_fallback_they_take_the_place_of_memory_shares():
    inventory = shared(replace(MEMORY, replicas=2))
    assert inventory.devices[0].attributes["sharedBy"] == "memory"
    assert [d.attributes["sharedBy"] for d in inventory.offering.instead[NAME]] == ["replicas", "replicas"]
    (whole,) = shared(MEMORY).offering.instead[NAME]
    assert (whole.type, whole.share) == (DeviceType.GPU, None)


def test_a_gpu_of_unknown_memory_can_have_replicas_but_no_memory_shares():
    unknown = replace(FULL_GPU, memory_bytes=None)
    (device,) = shared(REPLICAS, gpu=unknown).devices
    assert fit(device, {}) == 4
    inventory = shared(MEMORY, gpu=unknown)
    assert inventory.devices[0].type is DeviceType.GPU
    assert "no memory" in inventory.problems[0].message
