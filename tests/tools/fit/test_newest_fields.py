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


def test_derived_attributes_fail_without_their_gate_and_are_not_judged_with_it(explain):
    derived = [{"name": "derived/half", "expression": "1"}]
    wish = claim(constraints=[{"matchAttribute": "derived/half"}], derivedAttributes=derived)
    status, out = explain(*pool([[], []]), wish)
    assert status == ExitCode.ABORTS_SCHEDULING
    assert "cannot handle request with derived attributes, the feature is disabled" in out
    _, out = explain(*pool([[], []]), wish, gates=["DRADerivedAttributes=true"])
    assert "not judged: derivedAttributes with DRADerivedAttributes on" in out


def test_slices_with_skip_node_operations_are_not_judged_where_the_gate_may_be_on(explain):
    slices = pool([[], []], skipNodeOperations=["*"])
    status, out = explain(*slices, claim(), gates=["DRAOptionalNodeOperations=false"])
    assert (status, "fits on n1" in out) == (ExitCode.OK, True)
    _, out = explain(*slices, claim())
    assert "not judged: skipNodeOperations" in out


def test_a_field_that_no_version_has_is_a_fault(explain):
    status, out = explain(*pool([[], []], skipNodes=["*"]), claim())
    assert (status, "spec.skipNodes is not a field of the API" in out) == (ExitCode.BAD_INPUT, True)
