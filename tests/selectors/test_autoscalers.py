"""Lint for autoscalers: what an autoscaler does not know of a node that does not exist yet."""

from __future__ import annotations

import pytest

from dra_driver.selectors.advice.findings import LintSubject
from dra_driver.selectors.advice.lint import RULE, Autoscaler, lint
from dra_driver.selectors.evaluate.program import prepare_device
from dra_driver.selectors.kubernetes import KubernetesEngine

DRIVER = "gpu.nvidia.com"
A = f'device.attributes["{DRIVER}"]'
ENGINE = KubernetesEngine("1.35")
KARPENTER, CLUSTER = Autoscaler.KARPENTER_AWS, Autoscaler.CLUSTER_AUTOSCALER


def device(kind: str) -> dict:
    return {"attributes": {"type": {"string": kind}, "productName": {"string": "NVIDIA H100"}, "family": {"int": 1}}}


def found(
    expression: str,
    autoscaler: Autoscaler,
    *,
    is_last: bool = True,
    kinds: tuple[str, ...] = ("gpu", "mig", "gpu-share"),
) -> list[str]:
    views = [prepare_device(device(kind), DRIVER) for kind in kinds]
    subject = LintSubject(ENGINE.compile(expression), ENGINE, views, [1] * len(views), is_last=is_last)
    return [one.message for one in lint(subject, autoscaler=autoscaler) if one.rule == RULE]


@pytest.mark.parametrize(
    ("expression", "autoscaler", "names"),
    [
        (f'device.driver == "{DRIVER}" && {A}.type == "gpu"', KARPENTER, []),
        (f'device.driver == "{DRIVER}" && {A}.type == "gpu"', CLUSTER, []),
        (f'{A}.productName == "NVIDIA H100"', KARPENTER, []),
        (f'{A}.productName == "NVIDIA H100"', CLUSTER, [f"{DRIVER}/productName"]),
        (f'device.capacity["{DRIVER}"].memory.isGreaterThan(quantity("40Gi"))', KARPENTER, []),
        (f'device.capacity["{DRIVER}"].memory.isGreaterThan(quantity("40Gi"))', CLUSTER, [f"{DRIVER}/memory"]),
        (f"{A}.family == 1", KARPENTER, [f"{DRIVER}/family"]),
        (f'!("family" in {A}) || {A}.family == 1', KARPENTER, [f"{DRIVER}/family"]),
        ('device.attributes["resource.kubernetes.io"].numaNode == 0', KARPENTER, ["resource.kubernetes.io/numaNode"]),
        ('device.attributes["gpu.amd.com"].type == "gpu"', KARPENTER, ["gpu.amd.com/type"]),
        (f'device.attributes.exists(d, d == "{DRIVER}")', KARPENTER, ["all of device.attributes"]),
        ('device.driver == "dra.net" && device.attributes["dra.net"].rdma', KARPENTER, []),
        ('device.attributes["dra.net"].ifName == "eth0"', KARPENTER, ["dra.net/ifName"]),
        ('device.attributes["dra.net"].rdma', CLUSTER, ["dra.net/rdma"]),
    ],
)
def test_what_an_autoscaler_does_not_know_is_named(expression, autoscaler, names):
    messages = found(expression, autoscaler)
    assert [name for name in names if not any(f"does not know {name} before" in text for text in messages)] == []
    assert len(messages) == len(names)


@pytest.mark.parametrize("kind", ["mig", "gpu-share"])
def test_parts_of_gpus_alone_start_no_node(kind):
    expression = f'device.driver == "{DRIVER}" && {A}.type == "{kind}"'
    (message,) = found(expression, KARPENTER)
    assert kind in message
    assert "knows only whole GPUs" in message
    assert found(expression, KARPENTER, is_last=False) == [], "a later selector decides"


@pytest.mark.parametrize("autoscaler", [KARPENTER, CLUSTER])
@pytest.mark.parametrize("kind", ["mig", "gpu-share", "vfio", "imex-channel"])
def test_a_selector_for_parts_of_gpus_is_reported_without_any_device_at_hand(kind, autoscaler):
    (message,) = found(f'device.driver == "{DRIVER}" && {A}.type == "{kind}"', autoscaler, kinds=())
    assert "knows only whole GPUs" in message


@pytest.mark.parametrize(
    ("driver", "test", "is_started"),
    [
        ("gpu.intel.com", 'type == "gpu"', True),
        ("gpu.intel.com", 'type == "vf"', False),
        ("gpu.amd.com", 'type != "vfio"', True),
        ("gpu.amd.com", 'type == "amdgpu"', False),
        ("gpu.amd.com", 'type == "amdgpu-partition"', False),
    ],
)
def test_the_cluster_autoscaler_starts_nodes_of_any_driver_for_devices_of_one_type(driver, test, is_started):
    expression = f'device.driver == "{driver}" && device.attributes["{driver}"].{test}'
    messages = found(expression, CLUSTER, kinds=())
    assert ['only GPUs of type "gpu"' in one for one in messages] == ([] if is_started else [True])
    assert found(expression, CLUSTER, is_last=False, kinds=()) == []


def test_karpenter_knows_two_drivers():
    (message,) = found('device.driver == "gpu.amd.com"', KARPENTER, kinds=())
    assert "knows only devices of gpu.nvidia.com and dra.net" in message
    assert found('device.driver == "gpu.amd.com"', CLUSTER, kinds=()) == [], "annotations may name any driver"
    assert found('device.driver in ["gpu.amd.com", "gpu.nvidia.com"]', KARPENTER, kinds=()) == []
    assert found("true", KARPENTER, kinds=()) == []


@pytest.mark.parametrize(
    "expression",
    [
        f'device.driver == "{DRIVER}" && {A}.type == "gpu"',
        f'{A}.type != "mig"',
        f'"productName" in {A} && {A}.productName == "NVIDIA L4"',
        f'{A}[?"productName"].orValue("") == "NVIDIA L4"',
        f'{A}.productName == "NVIDIA L4"',
    ],
)
def test_a_selector_that_may_match_a_whole_gpu_is_not_reported(expression):
    assert found(expression, KARPENTER, kinds=()) == []


def test_the_rule_reports_nothing_without_an_autoscaler():
    selector = ENGINE.compile(f"{A}.family == 1")
    views = [prepare_device(device("gpu"), DRIVER)]
    assert not [one for one in lint(LintSubject(selector, ENGINE, views, [1])) if one.rule == RULE]
