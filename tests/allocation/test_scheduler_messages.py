"""The errors of the allocator have the scheduler's own words, minor by minor."""

from __future__ import annotations

from typing import Any

import pytest

from dra_driver.allocation.allocator import Allocator
from dra_driver.allocation.rules import Features
from tests.allocation.support import allocation_worlds as wire

ADVICE = (
    ". consider using CEL optional chaining (.? followed by orValue()) or guarding the check with has() for optional"
    " fields"
)
SHARED = {**wire.WITH_SHARES, "DeviceBinding": True, "DeviceStatus": True, "DeviceBindingAndStatus": True}
NO_SHARES = {**SHARED, "ConsumableCapacity": False}


def message(kubernetes: str, slices: list[Any], request: Any, features: dict[str, bool] = wire.ALL_FEATURES) -> str:
    on = Features.from_names(features)
    allocator = Allocator(slices=slices, classes=[wire.device_class()], kubernetes=kubernetes, features=on)
    outcome = allocator.for_claims([wire.claim(request)]).allocate(wire.node("node-1"))
    return outcome.error or ""


@pytest.mark.parametrize("kubernetes", ["1.36", "1.37"])
@pytest.mark.parametrize("features", [wire.ALL_FEATURES, SHARED], ids=["stable", "incubating"])
def test_since_1_37_an_error_of_a_selector_names_the_device(kubernetes: str, features: dict[str, bool]) -> None:
    wanted = wire.request(selectors=["1 / (device.capacity[device.driver].size() - 1) == 0"])
    slices = [wire.pool("node-1", [{"name": "bare"}, wire.gpu("gpu-0"), wire.gpu("gpu-1")])]
    where = " on device gpu.example.com/node-1/gpu-0" if kubernetes == "1.37" else ""
    text = f"claim default/claim: selector #0{where}: CEL runtime error: division by zero"
    assert message(kubernetes, slices, wanted, features) == text


@pytest.mark.parametrize("kubernetes", ["1.36", "1.37"])
def test_since_1_37_a_missing_key_comes_with_advice(kubernetes: str) -> None:
    wanted = wire.request(selectors=[f'{wire.attribute("nothing")} == "h100"'])
    where, advice = (" on device gpu.example.com/node-1/gpu-0", ADVICE) if kubernetes == "1.37" else ("", "")
    text = f"claim default/claim: selector #0{where}: CEL runtime error: no such key: nothing{advice}"
    assert message(kubernetes, [wire.pool("node-1", [wire.gpu("gpu-0")])], wanted) == text


def test_an_error_names_the_device_that_the_search_came_to_and_not_an_equal_one() -> None:
    wanted = wire.request(selectors=[f'{wire.attribute("nothing")} == "h100"'])
    allocator = Allocator(
        slices=[wire.pool(name, [wire.gpu("gpu-0")]) for name in ("node-1", "node-2")],
        classes=[wire.device_class()],
        kubernetes="1.37",
        features=Features.from_names(wire.ALL_FEATURES),
    )
    pod = allocator.for_claims([wire.claim(wanted)])
    assert "on device gpu.example.com/node-1/gpu-0:" in (pod.allocate(wire.node("node-1")).error or "")
    assert "on device gpu.example.com/node-2/gpu-0:" in (pod.allocate(wire.node("node-2")).error or "")


@pytest.mark.parametrize(("kubernetes", "where"), [("1.34", "request gpu"), ("1.35", "subrequest large")])
def test_1_34_names_the_request_where_an_alternative_asks_for_capacity(kubernetes: str, where: str) -> None:
    choice = {
        "name": "large",
        "deviceClassName": wire.DRIVER,
        "allocationMode": "ExactCount",
        "count": 1,
        "capacity": {"requests": {"memory": "1Gi"}},
    }
    found = message(
        kubernetes,
        [wire.pool("node-1", [wire.gpu("gpu-0")])],
        {"name": "gpu", "firstAvailable": [choice]},
        NO_SHARES,
    )
    assert (
        found
        == f"claim default/claim, {where}: has capacity requests, but the DRAConsumableCapacity feature is disabled"
    )


@pytest.mark.parametrize(
    ("mode", "device"), [("ExactCount", "gpu.example.com/node-1/gpu-0"), ("All", "gpu-0")], ids=["count", "all"]
)
def test_a_negative_capacity_names_the_device_as_the_stage_does_that_finds_it(mode: str, device: str) -> None:
    negative = {**wire.gpu("gpu-0"), "allowMultipleAllocations": True, "capacity": {"memory": {"value": "-1"}}}
    wanted = wire.request(count=None if mode == "All" else 1)
    found = message("1.37", [wire.pool("node-1", [negative])], wanted, SHARED)
    reason = 'capacity "memory": capacity value is negative'
    assert found == f"claim default/claim, request gpu: checking capacity for device {device}: {reason}"


@pytest.mark.parametrize("kubernetes", ["1.34", "1.35", "1.36", "1.37"])
def test_a_selector_of_several_terms_names_the_claim_that_can_not_have_it(kubernetes: str) -> None:
    terms = [{"matchExpressions": [{"key": "zone", "operator": "DoesNotExist"}]}] * 2
    slices = [wire.pool("rack", [wire.gpu("gpu-0")], nodeSelector={"nodeSelectorTerms": terms})]
    reason = "unsupported ResourceSlice.NodeSelector with 2 terms"
    assert message(kubernetes, slices, wire.request()) == f"create NodeSelector for claim claim: {reason}"
