from __future__ import annotations

from typing import Any

import pytest

from dra_driver.allocation import funnel, requests
from dra_driver.allocation.allocator import Allocator
from dra_driver.allocation.explanation import AllocationExplanation, explain
from dra_driver.allocation.rules import Features
from dra_driver.selectors.evaluate.program import DeviceView, prepare_device
from tests.allocation.support import allocation_worlds as wire


def explained(
    slices: list[Any],
    claims: list[Any],
    *,
    held: list[Any] | None = None,
    names: tuple[str, ...] = ("node-1",),
    features: dict[str, bool] = wire.ALL_FEATURES,
    pod: Any = None,
    newer: bool = False,
) -> AllocationExplanation:
    state: Any = {"slices": slices, "classes": [wire.device_class()], "allocated": held or []}
    on = Features.from_names(features)
    later = Allocator(**state, kubernetes="1.36", features=on) if newer else None
    allocator = Allocator(**state, kubernetes="1.35", features=on)
    return explain(allocator, claims, [wire.node(name) for name in names], pod=pod, newer=later)


def gpus(count: int, **attributes: Any) -> list[Any]:
    return [wire.gpu(f"gpu-{index}", **attributes) for index in range(count)]


def test_a_fit_names_its_devices() -> None:
    found = explained([wire.pool("node-1", gpus(2))], [wire.claim(wire.request())])
    assert found.ok
    assert found.sentence == "fits on node-1: gpu-0 for gpu"


def test_the_funnel_counts_what_each_stage_loses() -> None:
    devices = [
        wire.gpu("old", model="a100"),
        {**wire.gpu("sick", model="h100"), "taints": [{"key": "sick", "effect": "NoSchedule"}]},
        wire.gpu("held", model="h100"),
        wire.gpu("free", model="h100"),
    ]
    wanted = wire.request(count=2, selectors=[f'{wire.attribute("model")} == "h100"'])
    found = explained(
        [wire.pool("node-1", devices)], [wire.claim(wanted)], held=[wire.allocated(("node-1", "held"), name="job")]
    )
    [one] = found.nodes[0].funnels
    assert (one.devices, one.fits, one.wants) == (4, 1, 2)
    lost = {stage.name: [loss.device for loss in stage.lost] for stage in one.stages if stage.lost}
    assert lost == {"request selectors": ["old"], "taints": ["sick"], "in use": ["held"]}
    assert "request gpu wants 2, 1 of 4 devices can be had" in found.nodes[0].sentence
    assert "default/job" in found.nodes[0].sentence


def test_a_near_miss_says_what_is_lacking() -> None:
    wanted = f'device.capacity["{wire.DRIVER}"].memory.compareTo(quantity("80Gi")) >= 0'
    devices = [wire.gpu("gpu-0", memory="79Gi")]
    found = explained([wire.pool("node-1", devices)], [wire.claim(wire.request(selectors=[wanted]))])
    assert "memory: 79.0 GiB (79Gi) < 80.0 GiB (80Gi)" in found.sentence


def test_all_devices_held_by_others_names_the_holders() -> None:
    held = [wire.allocated(("node-1", "gpu-0"), name="a"), wire.allocated(("node-1", "gpu-1"), name="b")]
    found = explained([wire.pool("node-1", gpus(2))], [wire.claim(wire.request())], held=held)
    assert "2 matching devices are held by default/a, default/b" in found.sentence


def test_an_incomplete_pool_is_named_with_its_slices() -> None:
    found = explained([wire.pool("node-1", gpus(2), count=4)], [wire.claim(wire.request())])
    assert found.nodes[0].notes[0] == f"pool {wire.DRIVER}/node-1 is incomplete: 1 of 4 slices"


def test_a_selector_that_fails_blocks_scheduling_and_names_the_device() -> None:
    found = explained(
        [wire.pool("node-1", gpus(1))], [wire.claim(wire.request(selectors=[f'{wire.attribute("nothing")} == "x"']))]
    )
    assert found.aborts
    assert found.sentence.startswith("scheduling is blocked: node-1: selector error on device gpu-0")


def test_a_failing_selector_may_block_where_another_node_comes_first() -> None:
    slices = [wire.pool("node-1", gpus(1)), wire.pool("node-2", gpus(1, nothing="x"))]
    wanted = wire.claim(wire.request(selectors=[f'{wire.attribute("nothing")} == "x"']))
    found = explained(slices, [wanted], names=("node-1", "node-2"))
    assert found.sentence.startswith("scheduling may be blocked")


def test_a_failing_selector_does_not_matter_on_a_node_that_the_pod_avoids() -> None:
    slices = [wire.pool("node-1", gpus(1)), wire.pool("node-2", gpus(1, nothing="x"))]
    wanted = wire.claim(wire.request(selectors=[f'{wire.attribute("nothing")} == "x"']))
    pod = {"spec": {"nodeName": "node-2"}}
    found = explained(slices, [wanted], names=("node-1", "node-2"), pod=pod)
    assert found.ok
    assert found.nodes[0].skipped


def test_a_refusal_by_one_kubernetes_version_only_is_noted() -> None:
    devices = wire.partitioned("node-1", 1, 2)
    devices[1]["spec"]["devices"][0]["taints"] = [{"key": "sick", "effect": "NoSchedule"}]
    found = explained(devices, [wire.claim(wire.request())], newer=True)
    assert not found.ok
    assert "Kubernetes 1.35 refuses this; 1.36 allocates gpu-0-0 for gpu" in found.nodes[0].notes


def test_devices_without_counters_left_are_lost_at_the_stage_of_counters() -> None:
    found = explained(
        wire.partitioned("node-1", 1, 2),
        [wire.claim(wire.request(selectors=[f'{wire.attribute("kind")} == "whole"']))],
        held=[wire.allocated(("node-1", "gpu-0-1"))],
    )
    stages = {stage.name: stage.lost for stage in found.nodes[0].funnels[0].stages if stage.lost}
    assert stages["counters"][0].reason == "slot-1 of gpu-0: needs 1, 0 left: default/holder holds gpu-0-1 on it"


def test_a_requested_capacity_that_no_device_has_is_named() -> None:
    wanted = wire.claim(wire.request(capacity={"requests": {"bandwidth": "1Gi"}}))
    found = explained([wire.pool("node-1", gpus(1))], [wanted], features=wire.WITH_SHARES)
    assert "it has no capacity bandwidth" in found.sentence


def test_devices_that_cannot_agree_are_lost_to_the_constraint() -> None:
    devices = [wire.gpu("gpu-0", root="a"), wire.gpu("gpu-1", root="b"), wire.gpu("gpu-2", root="b")]
    wanted = wire.claim(wire.request(count=3), constraints=[{"matchAttribute": f"{wire.DRIVER}/root"}])
    found = explained([wire.pool("node-1", devices)], [wanted])
    assert f"2 devices have its {wire.DRIVER}/root, but 3 are needed" in {
        loss.reason for stage in found.nodes[0].funnels[0].stages for loss in stage.lost
    }


def test_a_search_that_the_scheduler_would_not_finish_is_noted() -> None:
    wanted = wire.claim(wire.request(count=13, selectors=[f'{wire.attribute("kind")} == "part"']))
    found = explained(wire.partitioned("node-1", 6, 2), [wanted])
    assert any("the scheduler would give up after 10 s" in note for note in found.nodes[0].notes)


def test_equal_devices_that_a_selector_refuses_are_converted_once_for_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    converted: list[str] = []

    def counted(device: Any, driver: str) -> DeviceView:
        converted.append(device["name"])
        return prepare_device(device, driver)

    monkeypatch.setattr(requests, "prepare_device", counted)
    monkeypatch.setattr(funnel, "prepare_device", counted)
    models = ["a100" if index % 2 else "l4" for index in range(20)]
    devices = [wire.gpu(f"gpu-{index}", model=model, uuid=f"GPU-{index}") for index, model in enumerate(models)]
    wanted = wire.request(selectors=[f'{wire.attribute("model")} == "h100"'])
    found = explained([wire.pool("node-1", devices)], [wire.claim(wanted)])
    assert len(converted) == 4  # one device of each model for the verdict, and one for the reason
    [stage] = [one for one in found.nodes[0].funnels[0].stages if one.lost]
    expected = [(f"gpu-{index}", f'model: "{model}" != "h100"') for index, model in enumerate(models)]
    assert [(one.device, one.reason) for one in stage.lost] == expected
