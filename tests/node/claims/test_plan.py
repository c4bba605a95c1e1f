"""Plans: steps, names, what the kubelet gets, which config applies to which device."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.base.errors import ClaimError, Retry
from dra_driver.base.wire import DeviceType
from dra_driver.hardware.facts import DeviceNode, Edits
from dra_driver.hardware.nvidia.published import NvidiaGpu
from dra_driver.node.claims.allocated import AllocatedClaim, AllocatedDevice, ConfigEntry, devices_of, join_claim
from dra_driver.node.claims.device_config import DeviceConfig
from dra_driver.node.claims.plan import plan_prepare
from dra_driver.node.devices.describing import Device
from dra_driver.node.devices.offering import Inventory, Offering

GPU, MIG = DeviceConfig("GpuConfig"), DeviceConfig("MigDeviceConfig")
FACTS = NvidiaGpu("GPU-0", "0000:00:00.0", 0, 1)
INVENTORY = Inventory(
    Offering(
        tuple(Device(f"gpu-{i}", DeviceType.GPU, {}, {}, FACTS) for i in range(3))
        + tuple(Device(f"mig-{i}", DeviceType.MIG, {}, {}, FACTS) for i in range(2))
    )
)
COMMON = Edits(env=("A=b",))


def claim(*devices: AllocatedDevice, configs: tuple[ConfigEntry, ...] = ()) -> AllocatedClaim:
    return AllocatedClaim("u", "ns", "c", devices, configs)


def result(device: str, request: str = "r", share: str | None = None) -> AllocatedDevice:
    return AllocatedDevice(request, "p", device, share)


def plan(claim: AllocatedClaim):
    devices = devices_of(claim, INVENTORY, "p")
    edits = {name: Edits(device_nodes=(DeviceNode(f"/dev/{name}", 1, 2),)) for name in devices}
    return plan_prepare(join_claim(claim, devices), edits, COMMON, "x")


def test_a_plan_writes_one_file_for_all_devices_of_the_claim() -> None:
    made = plan(claim(result("gpu-0", "a/b"), result("mig-1", share="s")))
    (step,) = made.steps
    assert list(step.devices) == ["u-gpu-0", "u-mig-1-s"]
    assert step.common is COMMON
    assert (step.kind, step.key) == ("cdi-file", "k8s.x-claim_u.json")
    first, second = made.devices
    assert (first.request, first.device, first.cdi_ids) == ("a", "gpu-0", ("k8s.x/claim=u-gpu-0",))
    assert (second.share_id, second.cdi_ids) == ("s", ("k8s.x/claim=u-mig-1-s",))


@given(st.lists(st.sampled_from([d.name for d in INVENTORY.devices]), min_size=1, max_size=5))
def test_the_same_claim_gives_the_same_plan(names: list[str]) -> None:
    one = claim(*(result(name, f"r{i}") for i, name in enumerate(names)))
    assert plan(one) == plan(copy.deepcopy(one))
    assert [d.device for d in plan(one).devices] == names


def test_devices_that_are_not_on_the_node_are_all_named() -> None:
    with pytest.raises(ClaimError, match="gone-1, gone-2") as caught:
        devices_of(claim(result("gpu-0"), result("gone-2"), result("gone-1")), INVENTORY, "p")
    assert (caught.value.code, caught.value.retry) == ("claim.device-unknown", Retry.LATER)


def test_the_error_names_what_hardware_that_does_not_answer_waits_for() -> None:
    with pytest.raises(ClaimError, match="the driver to load") as caught:
        devices_of(claim(result("gpu-0")), Inventory(waiting_for="the driver to load"), "p")
    assert caught.value.code == "claim.hardware-waiting"


def chosen(*configs: ConfigEntry, devices: tuple[AllocatedDevice, ...]):
    one = claim(*devices, configs=configs)
    return [found.config for found in join_claim(one, devices_of(one, INVENTORY, "p")).results]


def test_a_config_without_requests_applies_to_every_device_of_its_type() -> None:
    devices = (result("gpu-0", "a"), result("mig-0", "b"))
    assert chosen(ConfigEntry(MIG), devices=devices) == [None, MIG]
    assert chosen(ConfigEntry(MIG), ConfigEntry(GPU), devices=devices) == [GPU, MIG]


def test_a_config_with_requests_applies_only_to_those() -> None:
    devices = (result("gpu-0", "a"), result("gpu-1", "b/x"), result("gpu-2", "b/y"))
    assert chosen(ConfigEntry(GPU, ("b/x",)), devices=devices) == [None, GPU, None]
    assert chosen(ConfigEntry(GPU, ("b",)), devices=devices) == [None, GPU, GPU]
    assert chosen(ConfigEntry(GPU, ("elsewhere",)), devices=devices) == [None, None, None]


def test_a_later_config_wins() -> None:
    devices = (result("gpu-0"),)
    first, second = DeviceConfig("GpuConfig"), DeviceConfig("GpuConfig")
    assert chosen(ConfigEntry(first), ConfigEntry(second, ("r",)), devices=devices)[0] is second
    assert chosen(ConfigEntry(second, ("r",)), ConfigEntry(first), devices=devices)[0] is first


def test_a_config_that_names_a_device_of_another_type_is_an_error() -> None:
    one = claim(
        result("mig-0", "a"),
        result("gpu-0", "b"),
        configs=(ConfigEntry(GPU, ("a",)), ConfigEntry(MIG, ("b",))),
    )
    with pytest.raises(ClaimError) as caught:
        plan(one)
    assert caught.value.code == "claim.bad-config"
    assert "config for request a: GpuConfig does not go with mig-0" in caught.value.message
    assert "config for request b: MigDeviceConfig does not go with gpu-0" in caught.value.message
