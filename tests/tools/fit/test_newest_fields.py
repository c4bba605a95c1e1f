"""Objects with fields of Kubernetes 1.36 and 1.37: judged as the scheduler does, or reported as not judged."""

from __future__ import annotations

import pytest
import yaml

from dra_driver.base.errors import ExitCode
from dra_driver.tools.main import run

GROUPS = "DRADeviceCompatibilityGroups"


def pool(groups, **more):
    """Return the slices of one node: parts of one GPU that name these groups."""
    head = {"driver": "gpu.nvidia.com", "nodeName": "n1", "pool": {"name": "n1", "resourceSliceCount": 2}}
    parts = [
        {
            "name": f"part-{number}",
            "attributes": {"type": {"string": "gpu"}},
            "nodeAllocatableResources": {"memory": {"mapping": {"deviceMultiplier": "1Mi"}, "overhead": {"perPod": 1}}},
            "consumesCounters": [
                {"counterSet": "gpu", "counters": {"memory": {"value": "20Gi"}}, "compatibilityGroups": names}
            ],
        }
        for number, names in enumerate(groups)
    ]
    sets = [{"name": "gpu", "counters": {"memory": {"value": "80Gi"}}}]
    specs = [{"sharedCounters": sets}, {"devices": parts, "partitionTypeAttribute": "gpu.nvidia.com/profile", **more}]
    return [
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": f"slice-{number}"},
            "spec": head | spec,
        }
        for number, spec in enumerate(specs)
    ]


def claim(count=2, constraints=(), **more):
    wish = {"deviceClassName": "gpu.nvidia.com", "allocationMode": "ExactCount", "count": count, **more}
    devices = {"requests": [{"name": "gpus", "exactly": wish}]} | ({"constraints": constraints} if constraints else {})
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "two", "namespace": "default"},
        "spec": {"devices": devices},
    }


@pytest.fixture
def explain(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")

    def asked(*objects, version="1.37", gates=()):
        file = tmp_path / "objects.yaml"
        file.write_text(yaml.safe_dump_all(objects))
        status = run(["explain", "-f", str(file), "--kubernetes", version, *(f"--gate={one}" for one in gates)])
        return status, "".join(capsys.readouterr())

    return asked


def test_parts_of_a_gpu_without_a_common_group_are_not_allocated_together(explain):
    status, out = explain(*pool([["a"], ["b"]]), claim())
    assert (status, "does not fit on n1" in out) == (ExitCode.NO_MATCH, True)
    assert "devices that draw from one counter set need a compatibility group in common" in out
    assert f"{GROUPS} on (its fields are in the ResourceSlices)" in out
    status, out = explain(*pool([["a", "b"], ["b"]]), claim())
    assert (status, "fits on n1" in out) == (ExitCode.OK, True)


def test_a_held_part_excludes_parts_of_other_groups(explain):
    held = claim(1) | {"metadata": {"name": "held", "namespace": "default"}}
    result = {"request": "gpus", "driver": "gpu.nvidia.com", "pool": "n1", "device": "part-0"}
    held["status"] = {"allocation": {"devices": {"results": [result]}}}
    status, out = explain(*pool([["a"], ["b"]]), held, claim(1))
    assert status == ExitCode.NO_MATCH
    assert "compatibility groups of gpu: b, but what is held there has a" in out


def test_a_pool_with_groups_is_not_used_where_the_gate_is_off(explain):
    status, out = explain(*pool([["a"], ["a"]]), claim(), gates=[f"{GROUPS}=false"])
    assert (status, "does not fit on n1" in out) == (ExitCode.NO_MATCH, True)
    assert "its slices with compatibilityGroups are ignored" in out
    status, out = explain(*pool([["a"], ["b"]]), claim(), version="1.36")
    assert (status, "fits on n1" in out) == (ExitCode.OK, True)  # 1.36 does not know the field


DERIVING = ["DRADerivedAttributes=true"]


def deriving(expression, count=2, **more):
    """Return a claim whose devices have to agree in what an expression makes of them."""
    rows = [{"name": "example.com/half", "expression": expression}]
    return claim(count, [{"matchAttribute": "example.com/half"}], derivedAttributes=rows, **more)


def test_derived_attributes_fail_without_their_gate(explain):
    status, out = explain(*pool([[], []]), deriving("1"))
    assert status == ExitCode.ABORTS_SCHEDULING
    assert "cannot handle request with derived attributes, the feature is disabled" in out


def test_devices_agree_in_what_a_request_derives_of_them(explain):
    kind = 'device.attributes["gpu.nvidia.com"].type'
    status, out = explain(*pool([[], []]), deriving(kind), gates=DERIVING)
    assert (status, "fits on n1" in out) == (ExitCode.OK, True)
    slices = pool([[], []])
    slices[1]["spec"]["devices"][1]["attributes"]["slot"] = {"int": 1}
    differs = 'device.attributes["gpu.nvidia.com"].?slot.orValue(0)'
    status, out = explain(*slices, deriving(differs), gates=DERIVING)
    assert (status, "does not fit on n1" in out) == (ExitCode.NO_MATCH, True)
    assert "1 devices have its example.com/half, but 2 are needed" in out
    status, out = explain(*slices, deriving(f"{differs} / 2"), gates=DERIVING)
    assert (status, "fits on n1" in out) == (ExitCode.OK, True)


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("1.5", "compile derived attribute example.com/half failed: must evaluate to a primitive scalar"),
        ("1 +", "compile derived attribute example.com/half failed: compilation failed: ERROR: <input>:1:4"),
        (
            'device.attributes["gpu.nvidia.com"].nothing',
            "derived attribute example.com/half on device gpu.nvidia.com/n1/part-0 failed: no such key: nothing",
        ),
        ("dyn(1.5)", "unsupported CEL return type: float64"),
        ('[dyn(1), dyn("a")]', "expected list element at index 1 to be int, got string"),
        ("[dyn(1.5)]", "unsupported list element type: float64"),
    ],
)
def test_an_expression_that_fails_ends_the_allocation_with_kubernetes_words(explain, expression, text):
    status, out = explain(*pool([[], []]), deriving(expression), gates=DERIVING)
    assert status == ExitCode.ABORTS_SCHEDULING
    assert text in out


def test_nodes_that_differ_in_what_is_derived_are_judged_apart(explain):
    slices = [one for number in (1, 2) for one in pool([[], []])]
    for number, one in enumerate(slices):
        name = f"n{number // 2 + 1}"
        one["metadata"]["name"] = f"slice-{number}"
        one["spec"] |= {"nodeName": name, "pool": one["spec"]["pool"] | {"name": name}}
    for number, device in enumerate(slices[3]["spec"]["devices"]):
        device["attributes"]["slot"] = {"int": number}
    wish = deriving('device.attributes["gpu.nvidia.com"].?slot.orValue(0)')
    status, out = explain(*slices, wish, gates=DERIVING)
    assert status == ExitCode.OK
    assert "fits on 1 of 2 nodes; n1: part-0" in out


@pytest.mark.parametrize("declared", [True, False])
def test_devices_whose_driver_skips_calls_need_a_kubelet_that_can_do_without(explain, declared):
    features = ["DRAOptionalNodeOperations"] if declared else []
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n1"},
        "status": {"declaredFeatures": features},
    }
    slices = pool([[], []], skipNodeOperations=["*"])
    status, out = explain(*slices, node, claim())
    assert status == (ExitCode.OK if declared else ExitCode.NO_MATCH)
    assert ("the node's kubelet does not declare DRAOptionalNodeOperations" in out) is not declared
    gates = ["DRAOptionalNodeOperations=false"]
    status, out = explain(*slices, node, claim(), gates=gates)
    assert (status, "fits on n1" in out) == (ExitCode.OK, True)  # that allocator does not look at the field
    status, out = explain(*slices, node, claim(), gates=[*gates, "DRADerivedAttributes=true"])
    assert status == ExitCode.NO_MATCH
    assert "its slice has skipNodeOperations, and the scheduler does not have DRAOptionalNodeOperations" in out


def test_a_field_that_no_version_has_is_a_fault(explain):
    status, out = explain(*pool([[], []], skipNodes=["*"]), claim())
    assert (status, "spec.skipNodes is not a field of the API" in out) == (ExitCode.BAD_INPUT, True)
