"""How a claim's devices are shared: precedence, what a claim may lower, what is refused, limits of clients."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.base.errors import ClaimError
from dra_driver.base.wire import (
    ClientLimits,
    DeviceType,
    Interval,
    MpsSettings,
    Share,
    ShareMode,
    SharingSettings,
    TimeSlicingSettings,
)
from dra_driver.hardware.amd.health import AmdGpu
from dra_driver.hardware.facts import PartitionFacts
from dra_driver.hardware.nvidia.published import NvidiaGpu
from dra_driver.node.claims.allocated import AllocatedClaim, AllocatedDevice, ConfigEntry, join_claim
from dra_driver.node.claims.device_config import DeviceConfig
from dra_driver.node.claims.plan import SharingStep, plan_sharing
from dra_driver.node.devices.describing import Device, RequestPolicy

GIB = 1 << 30
LONG, SHORT, DEFAULT = (TimeSlicingSettings(i) for i in (Interval.LONG, Interval.SHORT, Interval.DEFAULT))


def gpu(index: int, capability: str | None = "9.0.0") -> NvidiaGpu:
    return NvidiaGpu(f"GPU-{9 - index}", f"0000:0{index}:00.0", index, 80 * GIB, compute_capability=capability)


def whole(index: int, **more: Any) -> Device:
    return Device(f"gpu-{index}", DeviceType.GPU, {}, {}, gpu(index, **more))


def part(index: int) -> Device:
    facts = PartitionFacts(f"MIG-{index}", "1g.10gb", 19, index, 0, index, 1, GIB, 16, 1, 1, 0, 1, 0)
    return Device(f"mig-{index}", DeviceType.MIG, {}, {}, gpu(7), facts)


def replica(index: int, settings: SharingSettings | None, type_: DeviceType = DeviceType.GPU_SHARE) -> Device:
    share = Share("gpu-5", ShareMode.REPLICAS, index, settings)
    return Device(f"gpu-5-share-{index}", type_, {}, {}, gpu(5), share=share)


def sized(settings: SharingSettings | None) -> Device:
    policies = {"memory": RequestPolicy(8 * GIB, GIB, 40 * GIB, GIB)}
    return Device(
        "gpu-6",
        DeviceType.GPU_SHARE,
        {},
        {},
        gpu(6),
        share=Share("gpu-6", ShareMode.MEMORY, None, settings),
        policies=policies,
    )


def result(device: str, request: str = "r", share: str | None = None, **consumed: str) -> AllocatedDevice:
    return AllocatedDevice(request, "p", device, share, consumed=tuple(sorted(consumed.items())))


def entry(
    settings: SharingSettings | None, kind: str = "GpuConfig", requests: Sequence[str] = (), *, of_class: bool = False
) -> ConfigEntry:
    return ConfigEntry(DeviceConfig(kind, settings), tuple(requests), of_class)


def steps(
    devices: Sequence[Device], results: Sequence[AllocatedDevice], *configs: ConfigEntry
) -> tuple[SharingStep, ...]:
    claim = AllocatedClaim("u", "ns", "c", tuple(results), configs)
    return plan_sharing(join_claim(claim, {d.name: d for d in devices}))


def refused(devices: Sequence[Device], results: Sequence[AllocatedDevice], *configs: ConfigEntry) -> str:
    with pytest.raises(ClaimError) as caught:
        steps(devices, results, *configs)
    assert caught.value.code == "claim.bad-config"
    return caught.value.message


# A device of the claim's own


def test_mps_on_a_gpu_of_another_vendor_is_refused_whatever_its_driver_is_called() -> None:
    amds = Device("gpu-0", DeviceType.GPU, {}, {}, AmdGpu("amd-0", "0000:03:00.0", 0, 192 * GIB))
    for settings in (MpsSettings(), MpsSettings(50, across_namespaces=True)):
        message = refused([amds], [result("gpu-0")], entry(settings))
        assert "config for request r: MPS is for NVIDIA's GPUs, and gpu-0 is not one of them" in message
    assert "MPS is for NVIDIA's GPUs" in refused([amds], [result("gpu-0")], entry(MpsSettings(), of_class=True))
    assert [step.settings for step in steps([amds], [result("gpu-0")], entry(DEFAULT))] == [DEFAULT]


def test_without_a_config_nothing_is_shared() -> None:
    assert steps([whole(0), part(0)], [result("gpu-0"), result("mig-0", "m")]) == ()
    assert steps([whole(0)], [result("gpu-0")], entry(None)) == ()


def test_on_a_device_of_its_own_the_claim_overrides_the_class_and_later_overrides_earlier() -> None:
    (step,) = steps([whole(0)], [result("gpu-0")], entry(SHORT, of_class=True), entry(LONG))
    assert (step.settings, step.device.name, step.device.uuid) == (LONG, "gpu-0", "GPU-9")
    (step,) = steps([whole(0)], [result("gpu-0")], entry(MpsSettings(30)), entry(SHORT))
    assert (step.settings, step.clients) == (SHORT, {})
    assert steps([whole(0)], [result("gpu-0")], entry(LONG), entry(None)) == ()


def test_each_request_has_its_own_strategy() -> None:
    devices = [whole(0), whole(1), part(0)]
    results = [result("gpu-0", "ts"), result("gpu-1", "mps"), result("mig-0", "mig")]
    made = steps(
        devices,
        results,
        entry(LONG, requests=["ts"]),
        entry(MpsSettings(50), requests=["mps"]),
        entry(MpsSettings(), "MigDeviceConfig"),
    )
    assert {step.device.uuid: step.settings for step in made} == {
        "GPU-9": LONG,
        "GPU-8": MpsSettings(50, per_device_limits={}),
        "MIG-0": MpsSettings(per_device_limits={}),
    }


def test_time_slicing_of_a_mig_device_needs_no_step() -> None:
    assert steps([part(0)], [result("mig-0")], entry(DEFAULT, "MigDeviceConfig")) == ()


def test_limits_by_device_are_by_uuid_or_by_the_index_in_sorted_uuids() -> None:
    settings = MpsSettings(None, GIB, {"0": 2 * GIB, "GPU-9": 3 * GIB})
    made = steps([whole(0), whole(1), whole(2)], [result(f"gpu-{i}", f"r{i}") for i in range(3)], entry(settings))
    assert {s.device.uuid: s.settings.pinned_memory_limit for s in made} == {  # type: ignore[union-attr]
        "GPU-7": 2 * GIB,
        "GPU-8": GIB,
        "GPU-9": 3 * GIB,
    }
    message = refused([whole(0)], [result("gpu-0")], entry(MpsSettings(per_device_limits={"1": GIB, "GPU-1": GIB})))
    assert "defaultPerDevicePinnedMemoryLimit[1] is none of its devices (0: GPU-9)" in message
    assert "defaultPerDevicePinnedMemoryLimit[GPU-1]" in message


def test_one_request_has_one_device_under_mps() -> None:
    message = refused([whole(0), whole(1)], [result("gpu-0"), result("gpu-1")], entry(MpsSettings()))
    assert "config for request r: a container talks to one MPS daemon, but each of gpu-0, gpu-1 has its own" in message
    assert len(steps([whole(0), whole(1)], [result("gpu-0"), result("gpu-1")], entry(LONG))) == 2


@pytest.mark.parametrize(
    ("capability", "settings", "fault"),
    [
        ("6.1.0", MpsSettings(multi_user=True), "MPS with limits or several users needs compute capability 7.0"),
        ("6.1.0", MpsSettings(50), "gpu-0 has 6.1.0"),
        ("3.0.0", MpsSettings(), "MPS needs compute capability 3.5"),
    ],
)
def test_an_old_gpu_does_not_support_all_of_mps(capability: str, settings: MpsSettings, fault: str) -> None:
    assert fault in refused([whole(0, capability=capability)], [result("gpu-0")], entry(settings))


def test_an_old_or_unknown_gpu_is_shared_by_mps_without_limits() -> None:
    for capability in ("6.1.0", None):
        assert steps([whole(0, capability=capability)], [result("gpu-0")], entry(MpsSettings()))


def test_admin_access_shares_nothing() -> None:
    one = AllocatedDevice("r", "p", "gpu-0", is_admin=True)
    assert steps([whole(0)], [one], entry(MpsSettings())) == ()


# A device that others share as well

BASE = MpsSettings(60, 20 * GIB, per_device_limits={})


def test_a_replica_is_shared_as_the_agent_configures_it_on_the_device_behind_it() -> None:
    (step,) = steps([replica(2, LONG)], [result("gpu-5-share-2")])
    assert (step.device.name, step.device.gpu_uuid, step.settings) == ("gpu-5", "GPU-4", LONG)
    assert step.in_file == ("u-gpu-5-share-2",)
    assert steps([replica(2, None)], [result("gpu-5-share-2")]) == ()


def test_a_class_overrides_the_agent_except_for_what_it_does_not_set() -> None:
    (step,) = steps([replica(0, BASE)], [result("gpu-5-share-0")], entry(MpsSettings(40), of_class=True))
    assert step.settings == MpsSettings(40, 20 * GIB, {})
    (step,) = steps([replica(0, LONG)], [result("gpu-5-share-0")], entry(SHORT, of_class=True))
    assert step.settings == SHORT


def test_a_claim_lowers_limits_for_its_own_clients_and_never_for_the_device() -> None:
    (step,) = steps([replica(0, BASE)], [result("gpu-5-share-0")], entry(MpsSettings(30, 5 * GIB)))
    assert step.settings == BASE
    assert step.clients == {"u-gpu-5-share-0": ClientLimits(30, 5 * GIB)}


@pytest.mark.parametrize(
    ("base", "wish", "fault"),
    [
        (BASE, MpsSettings(61), "a claim may only lower its active thread percentage of 60, not raise it to 61"),
        (BASE, MpsSettings(None, 21 * GIB), "a claim may only lower its pinned memory limit"),
        (BASE, MpsSettings(multi_user=True), "a claim can't set multiUser"),
        (BASE, LONG, "by MPS: TimeSlicing can't be combined with MPS on one device"),
        (LONG, MpsSettings(), "by TimeSlicing: MPS can't be combined with TimeSlicing on one device"),
        (LONG, SHORT, "with interval Long, which a claim can't change to Short"),
        (None, MpsSettings(), "set by a device class or the agent's configuration, and neither sets any"),
    ],
)
def test_a_claim_may_only_lower_limits(base: SharingSettings | None, wish: SharingSettings, fault: str) -> None:
    message = refused([replica(0, base)], [result("gpu-5-share-0")], entry(wish))
    assert "gpu-5-share-0 is shared with other claims" in message
    assert fault in message


@pytest.mark.parametrize("base", [None, DEFAULT, LONG])
def test_a_claim_for_the_default_interval_changes_nothing(base: SharingSettings | None) -> None:
    made = steps([replica(0, base)], [result("gpu-5-share-0")], entry(DEFAULT))
    assert [step.settings for step in made] == ([base] if base else [])


def test_a_share_by_size_is_its_clients_limit() -> None:
    share = result("gpu-6", share="s1", memory="10Gi")
    (step,) = steps([sized(BASE)], [share])
    assert step.clients == {"u-gpu-6-s1": ClientLimits(None, 10 * GIB)}
    (step,) = steps([sized(BASE)], [share], entry(MpsSettings(25, 4 * GIB)))
    assert step.clients == {"u-gpu-6-s1": ClientLimits(25, 4 * GIB)}
    percent = result("gpu-6", share="s2", compute="25", memory="0")
    assert steps([sized(BASE)], [percent])[0].clients == {"u-gpu-6-s2": ClientLimits(25, None)}


def test_shares_of_one_request_add_up_and_those_of_two_do_not() -> None:
    shares = [result("gpu-6", r, share=s, memory="4Gi", compute="30") for r, s in (("a", "1"), ("a", "2"), ("b", "3"))]
    (step,) = steps([sized(BASE)], shares)
    both = ClientLimits(60, 8 * GIB)
    assert step.clients == {"u-gpu-6-1": both, "u-gpu-6-2": both, "u-gpu-6-3": ClientLimits(30, 4 * GIB)}
    assert step.in_file == ("u-gpu-6-1", "u-gpu-6-2", "u-gpu-6-3")


def test_shares_without_mps_have_no_limits() -> None:
    (step,) = steps([sized(LONG)], [result("gpu-6", share="s", memory="4Gi")])
    assert step.clients == {}


def test_one_claim_cannot_share_one_device_in_two_ways() -> None:
    results = [result("gpu-6", "a", share="1"), result("gpu-6", "b", share="2")]
    message = refused(
        [sized(BASE)],
        results,
        entry(MpsSettings(10), requests=["a"], of_class=True),
        entry(MpsSettings(20), requests=["b"], of_class=True),
    )
    assert "gpu-6 can't be shared in two ways: request a has another config" in message


AMOUNT = st.integers(1, 40)


@given(
    st.lists(st.tuples(st.sampled_from("ab"), AMOUNT, st.integers(1, 100)), min_size=1, max_size=5), AMOUNT | st.none()
)
def test_a_client_never_gets_more_than_its_shares_nor_than_the_daemon_gives(
    shares: list[tuple[str, int, int]], most: int | None
) -> None:
    base = MpsSettings(None, None if most is None else most * GIB, per_device_limits={})
    results = [
        result("gpu-6", request, share=str(i), memory=f"{gib}Gi", compute=str(percent))
        for i, (request, gib, percent) in enumerate(shares)
    ]
    (step,) = steps([sized(base)], results)
    for index, (request, gib, percent) in enumerate(shares):
        limits = step.clients[f"u-gpu-6-{index}"]
        granted = sum(g for r, g, _ in shares if r == request) * GIB
        assert limits.pinned_memory_limit == min(granted, granted if most is None else most * GIB)
        assert limits.pinned_memory_limit >= min(gib, most or gib) * GIB
        assert percent <= (limits.active_thread_percentage or 0) <= 100


@given(
    st.sampled_from([None, LONG, DEFAULT, BASE]),
    st.builds(MpsSettings, st.none() | st.integers(0, 100), st.none() | AMOUNT.map(lambda n: n * GIB))
    | st.sampled_from([LONG, SHORT]),
)
def test_no_claim_changes_the_settings_of_a_device_shared_with_others(
    base: SharingSettings | None, wish: SharingSettings
) -> None:
    try:
        made = steps([replica(0, base)], [result("gpu-5-share-0")], entry(wish))
    except ClaimError:
        return
    assert [step.settings for step in made] == ([base] if base else [])
