from __future__ import annotations

import pytest

from dra_driver.allocation.allocator import Allocator
from dra_driver.allocation.rules import Features, choose_rules
from tests.allocation.support import allocation_worlds as wire


@pytest.mark.parametrize(
    ("last", "first"), [("1.34.11", "1.34.12"), ("1.35.8", "1.35.9"), ("1.36.4", "1.36.5"), ("1.37.0", "1.37.1")]
)
def test_the_limit_of_32_devices_is_checked_for_each_request_from_a_patch_release_on(last: str, first: str) -> None:
    assert not choose_rules(last, Features()).limit_per_request
    assert choose_rules(f"v{first}", Features()).limit_per_request
    assert choose_rules(f"{first}-gke.100", Features()).limit_per_request


@pytest.mark.parametrize(
    ("release", "account"), [("1.36.3", "pool name"), ("1.36.4", "pool"), ("1.36", "pool"), ("1.37.0", "pool")]
)
def test_counters_belong_to_a_driver_and_pool_from_1_36_4_on(release: str, account: str) -> None:
    assert choose_rules(release, Features()).counters_of == account


@pytest.mark.parametrize(
    ("off", "knows"),
    [((), True), (("DRAResourceClaimDeviceStatus",), False)],
    ids=["by default", "with device status off"],
)
def test_1_34_knows_distinct_attribute_because_of_the_gate_of_device_status(off: tuple[str, ...], knows: bool) -> None:
    features = Features.from_gates("1.34", dict.fromkeys(off, False))
    assert choose_rules("1.34", features).shares is knows
    assert not choose_rules("1.35", Features.from_gates("1.35", dict.fromkeys(off, False))).shares


@pytest.mark.parametrize(("kubernetes", "is_fit"), [("1.34", True), ("1.35", False)])
def test_1_34_takes_equal_values_for_distinct_ones(kubernetes: str, is_fit: bool) -> None:
    on = Features.from_names(
        {**wire.ALL_FEATURES, "DeviceBinding": True, "DeviceStatus": True, "DeviceBindingAndStatus": True}
    )
    slices = [wire.pool("node-1", [wire.gpu(f"gpu-{index}", model="h100") for index in range(2)])]
    allocator = Allocator(slices=slices, classes=[wire.device_class()], kubernetes=kubernetes, features=on)
    wanted = wire.claim(
        wire.request("a"), wire.request("b"), constraints=[{"distinctAttribute": f"{wire.DRIVER}/model"}]
    )
    assert allocator.for_claims([wanted]).allocate(wire.node("node-1")).ok is is_fit
