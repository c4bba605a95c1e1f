"""Pods and claims that are made from other objects, and what a quota refuses. Real controllers: the cluster lane."""

from __future__ import annotations

import pytest

from dra_driver.simulator.value_rules import devices_by_class, refusal
from dra_driver.simulator.workloads import ENTRY, expand

TEMPLATE = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "main"}]}}


def workload(kind, **spec):
    return {"kind": kind, "metadata": {"name": "w"}, "spec": {"template": TEMPLATE, **spec}}


def device_class(name, resource):
    return {"kind": "DeviceClass", "metadata": {"name": name}, "spec": {"extendedResourceName": resource}}


def pod(*limits):
    containers = [{"name": f"c{n}", "resources": {"limits": limit}} for n, limit in enumerate(limits)]
    return {"kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": containers}}


def claim(*requests):
    return {"spec": {"devices": {"requests": list(requests)}}}


def exactly(name, **more):
    return {"exactly": {"deviceClassName": name, **more}}


@pytest.mark.parametrize(
    ("given", "count"),
    [
        (workload("Deployment", replicas=3), 3),
        (workload("Deployment"), 1),
        (workload("Job", completions=9, parallelism=2), 2),
    ],
)
def test_a_workload_becomes_its_pods(given, count):
    made = list(expand([given]))
    assert [one["metadata"]["name"] for one in made] == [f"w-{n}" for n in range(count)]
    assert all(one["kind"] == "Pod" and one["metadata"]["labels"] == {"app": "a"} for one in made)


def test_limits_on_an_extended_resource_of_a_class_become_a_claim():
    known, made, changed = expand([device_class("gpus", "nvidia.com/gpu"), pod({"nvidia.com/gpu": 2}, {"cpu": 1})])
    assert known["kind"] == "DeviceClass"
    assert made["spec"]["devices"]["requests"] == [
        {
            "name": "container-0-request-0",
            "exactly": {"deviceClassName": "gpus", "allocationMode": "ExactCount", "count": 2},
        }
    ]
    assert changed["spec"]["resourceClaims"] == [{"name": ENTRY, "resourceClaimName": made["metadata"]["name"]}]
    first, second = changed["spec"]["containers"]
    assert first["resources"] == {"claims": [{"name": ENTRY, "request": "container-0-request-0"}]}
    assert second["resources"] == {"limits": {"cpu": 1}}


def test_other_limits_and_pods_are_left_as_they_are():
    given = pod({"amd.com/gpu": 1})
    assert list(expand([given])) == [given]


def test_devices_are_counted_by_class():
    alternatives = {"firstAvailable": [{"deviceClassName": "a", "count": 2}, {"deviceClassName": "a"}]}
    found = devices_by_class(
        claim(exactly("a"), exactly("b", count=3), exactly("c", allocationMode="All"), alternatives)
    )
    assert found == {"a": 3, "b": 3, "c": 32}


def test_a_quota_refuses_a_claim_beyond_its_limit_with_the_numbers():
    quota = {"metadata": {"name": "q"}, "spec": {"hard": {"a.deviceclass.resource.k8s.io/devices": "2", "pods": "1"}}}
    one = claim(exactly("a"))
    assert refusal([quota], [one], one) == ""
    assert refusal([quota], [one, one], claim(exactly("b"))) == ""
    said = refusal([quota], [one, one], one)
    assert said.startswith("exceeded quota: q, requested: a.")
    assert "used: a.deviceclass.resource.k8s.io/devices=2, limited:" in said
