"""Warnings about pods whose images need a newer CUDA version than drivers of the fleet support."""

from __future__ import annotations

import pytest

from dra_driver.tools.webhook.fleet import PublishedFleet
from dra_driver.tools.webhook.linting import ImageAdvisor
from dra_driver.tools.webhook.review import WARNING_CHARACTERS, review_pods
from tests.support.api.embedded_client import slice_wire
from tests.tools.webhook.support.reviews import DRIVER, review

SELECTOR = 'device.attributes["gpu.nvidia.com"].cudaDriverVersion.compareTo(semver("12.8.0")) >= 0'


def device(index, cuda):
    attributes = {"uuid": {"string": f"GPU-{index}"}, "cudaDriverVersion": {"version": cuda}}
    return {"name": f"gpu-{index}", "attributes": attributes}


@pytest.fixture
def fleet():
    made = PublishedFleet((DRIVER,))
    wire = slice_wire("s", driver=DRIVER, devices=[device(0, "12.2.0"), device(1, "12.2.0"), device(2, "12.8.0")])
    wire["metadata"]["uid"] = "s"
    made.replace_slices((wire,))
    made.replace_classes(())
    return made


def pod(*env, annotations=None, claims=({"name": "gpu", "resourceClaimTemplateName": "one"},), field="containers"):
    metadata = {"name": "p", "annotations": annotations or {}}
    spec = {"containers": [], field: [{"name": "main", "env": list(env)}], "resourceClaims": list(claims)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def required(text):
    return {"name": "NVIDIA_REQUIRE_CUDA", "value": text}


def said(fleet, obj, operation="CREATE"):
    answer = review_pods(review(obj, operation=operation), ImageAdvisor(fleet, (DRIVER,)))["response"]
    assert answer["allowed"]
    return answer.get("warnings", [])


@pytest.mark.parametrize(
    ("obj", "by"),
    [
        (pod(required("cuda>=12.8")), "container main: NVIDIA_REQUIRE_CUDA"),
        (pod(required("cuda>=12.8"), field="initContainers"), "container main: NVIDIA_REQUIRE_CUDA"),
        (pod(annotations={"gpu.nvidia.com/cuda-required": "12.8"}), "annotation gpu.nvidia.com/cuda-required"),
    ],
)
def test_a_need_above_some_drivers_gets_a_warning_with_a_selector(fleet, obj, by):
    short, selector = said(fleet, obj)
    assert short.startswith(f"{by} needs CUDA 12.8, but 2 of the cluster's 3 devices have a driver that supports less")
    assert selector.endswith(f": {SELECTOR}")
    assert all(len(one) < WARNING_CHARACTERS for one in (short, selector))


def workload(kind, one):
    inner = {"spec": {"template": {"metadata": one["metadata"], "spec": one["spec"]}}}
    spec = {"jobTemplate": inner} if kind == "CronJob" else inner["spec"]
    group = "batch/v1" if "Job" in kind else "apps/v1"
    return {"apiVersion": group, "kind": kind, "metadata": {"name": "w"}, "spec": spec}


@pytest.mark.parametrize("operation", ["CREATE", "UPDATE"])
@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob"])
def test_a_need_of_a_pod_template_gets_a_warning_on_the_workload(fleet, kind, operation):
    one = pod(annotations={"gpu.nvidia.com/cuda-required": "12.8"})
    short, selector = said(fleet, workload(kind, one), operation)
    assert short.startswith("annotation gpu.nvidia.com/cuda-required needs CUDA 12.8")
    assert selector.endswith(f": {SELECTOR}")


@pytest.mark.parametrize(
    "obj",
    [
        {"kind": "Deployment", "spec": {"template": 3}},
        {"kind": "CronJob", "spec": {"jobTemplate": {"spec": []}}},
        {"kind": "ReplicaSet", "spec": {"template": pod(required("cuda>=12.8"))}},
        pod(required("cuda>=12.0")),
        pod(required("cuda>=12.8"), claims=()),
        pod(required("brand=tesla")),
        pod({"name": "NVIDIA_REQUIRE_CUDA", "valueFrom": {}}),
        pod(annotations={"gpu.nvidia.com/cuda-required": "newest"}),
        {"kind": "Pod", "spec": [], "metadata": 3},
        {"kind": "Pod", "spec": {"containers": "x", "initContainers": [3], "resourceClaims": [{}]}},
    ],
)
def test_a_need_that_is_met_or_not_known_gets_no_warning(fleet, obj):
    assert said(fleet, obj) == []


def test_an_update_of_a_pod_gets_no_warning_and_none_is_given_before_the_fleet_is_known(fleet):
    assert said(fleet, pod(required("cuda>=12.8")), operation="UPDATE") == []
    assert said(PublishedFleet((DRIVER,)), pod(required("cuda>=12.8"))) == []
