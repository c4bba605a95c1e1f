import pytest

from dra_driver.base.errors import InputError
from dra_driver.base.wire import TaintEffect
from dra_driver.node.health.faults import (
    DEFAULT_RULES,
    EvictionLimit,
    Fault,
    FaultKey,
    HealthPolicy,
    HealthRule,
    Subject,
)
from dra_driver.node.health.policy_files import read_health_policy
from dra_driver.node.health.taints import DevicePlace, taints_of, verdicts_of
from tests.node.health.support.parts import ONE, TWO

PLACES = (
    DevicePlace("gpu-one", ONE),
    DevicePlace("gpu-one-mig-a", ONE, (19, 0)),
    DevicePlace("gpu-one-mig-b", ONE, (19, 1)),
    DevicePlace("gpu-two", TWO),
)


def fault(key=FaultKey.GPU_LOST, subject=None, since=100.0, last=100.0, **more):
    return Fault(key, subject or Subject(ONE), more.pop("value", ""), since, last, **more)


def effects(*faults, policy=None, now=100.0, places=PLACES):
    found = taints_of(verdicts_of(places, faults, policy or HealthPolicy(), now), "gpu.nvidia.com")
    return {name: [(taint.key, taint.effect.value) for taint in taints] for name, taints in found.items()}


LOST = [("gpu.nvidia.com/gpu-lost", "NoSchedule")]


def test_a_fault_of_a_gpu_taints_it_and_its_partitions_and_no_other_gpu():
    assert effects(fault()) == {"gpu-one": LOST, "gpu-one-mig-a": LOST, "gpu-one-mig-b": LOST}


def test_a_fault_of_a_partition_taints_only_that_partition():
    assert effects(fault(subject=Subject(ONE, (19, 1)))) == {"gpu-one-mig-b": LOST}


def test_a_mild_fault_only_informs():
    found = effects(fault(FaultKey.ECC_UNCORRECTABLE, is_mild=True))
    assert found["gpu-one"] == [("gpu.nvidia.com/ecc-uncorrectable", "None")]


def test_heat_keeps_claims_away_after_five_minutes():
    hot = fault(FaultKey.THERMAL)
    assert effects(hot, now=399)["gpu-one"] == [("gpu.nvidia.com/thermal", "None")]
    assert effects(hot, now=400)["gpu-one"] == [("gpu.nvidia.com/thermal", "NoSchedule")]


def test_a_fault_not_seen_for_its_time_to_live_does_not_count():
    rules = {**DEFAULT_RULES, FaultKey.XID: HealthRule(TaintEffect.NO_SCHEDULE, time_to_live=60)}
    old = fault(FaultKey.XID, value="95")
    assert effects(old, policy=HealthPolicy(rules), now=160)
    assert not effects(old, policy=HealthPolicy(rules), now=161)


def test_no_fault_evicts_from_more_than_half_of_a_node():
    rules = {**DEFAULT_RULES, FaultKey.GPU_LOST: HealthRule(TaintEffect.NO_EXECUTE)}
    policy = HealthPolicy(rules)
    places = tuple(DevicePlace(f"gpu-{n}", f"0000:0{n}:00.0") for n in range(4))
    two = [fault(subject=Subject(place.gpu)) for place in places[:2]]
    three = [fault(subject=Subject(place.gpu)) for place in places[:3]]
    assert {one[0][1] for one in effects(*two, policy=policy, places=places).values()} == {"NoExecute"}
    assert {one[0][1] for one in effects(*three, policy=policy, places=places).values()} == {"NoSchedule"}
    assert effects(two[0], policy=policy, places=places[:1])["gpu-0"][0][1] == "NoExecute"


def test_taints_have_the_keys_and_values_of_nvidias_driver_in_order_of_importance():
    found = taints_of(verdicts_of(PLACES[:1], [fault(FaultKey.XID, value="95"), fault()], HealthPolicy(), 0), "d.io")
    assert [taint.wire() for taint in found["gpu-one"]] == [
        {"key": "d.io/gpu-lost", "effect": "NoSchedule", "timeAdded": "1970-01-01T00:01:40Z"},
        {"key": "d.io/xid", "value": "95", "effect": "NoSchedule", "timeAdded": "1970-01-01T00:01:40Z"},
    ]


def read(tmp_path, text):
    path = tmp_path / "health.yaml"
    path.write_text(text)
    return read_health_policy(path)


def test_a_policy_file_changes_what_it_names_and_nothing_else(tmp_path):
    text = "version: health/v1\nignoreXids: [92]\nfaults:\n  thermal: {effect: NoSchedule}\n"
    text += "  xid: {timeToLive: 24h}\n  pcie: {ignore: true}\n  nvlink: {effect: NoExecute}\n"
    assert not read(tmp_path, "version: health/v1\n").evicts
    policy = read(tmp_path, text + "evictions: {devices: 2, period: 1h}\n")
    assert (policy.evicts, policy.evictions) == (True, EvictionLimit(2, 3600))
    assert policy.rules[FaultKey.NVLINK].effect is TaintEffect.NO_EXECUTE
    assert policy.ignored_xids == {92}
    assert policy.rules[FaultKey.THERMAL] == HealthRule(TaintEffect.NO_SCHEDULE)
    assert policy.rules[FaultKey.XID] == HealthRule(TaintEffect.NO_SCHEDULE, time_to_live=86400)
    assert policy.rules[FaultKey.PCIE].is_ignored
    assert policy.rules[FaultKey.GPU_LOST] == DEFAULT_RULES[FaultKey.GPU_LOST]


def test_a_policy_file_is_refused_with_all_mistakes_at_once(tmp_path):
    text = "version: health/v2\nignoreXids: [79, -1]\nfaults:\n  nope: {}\n  xid: {effect: Never, timeToLive: soon}\n"
    text += "  cordoned: {effect: NoExecute}\n  pcie: {ignored: true}\nmore: 1\n"
    with pytest.raises(InputError) as caught:
        read(tmp_path, text + "evictions: {devices: 0, period: 1s}\n")
    assert caught.value.code == "input.health-policy"
    parts = ("version", "ignoreXids", "[1]", "nope", "effect", "timeToLive", "NoExecute", "ignored", "more")
    for part in (*parts, "devices", "period"):
        assert part in caught.value.message, part
    assert "11 mistakes" in caught.value.message
