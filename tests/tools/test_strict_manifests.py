"""Unknown and wrongly typed fields are faults with line and column in every command that reads manifests."""

from __future__ import annotations

import io

import pytest

from dra_driver.base.errors import ExitCode
from dra_driver.tools.main import run

FAULTY = """\
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers:
    - name: main
      imagee: x
      resources: {limits: {nvidia.com/gpu: 1}}
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (FAULTY, ":7:7: Pod p: spec.containers[0].imagee is not a field of the API"),
        (FAULTY.replace("imagee: x", "image: [x]"), ":7:7: Pod p: spec.containers[0].image is not a text"),
        (
            FAULTY.replace("imagee", "image").replace("gpu: 1", "gpu: '${GPUS}'"),
            ":8:28: Pod p: spec.containers[0].resources.limits.nvidia.com/gpu",
        ),
    ],
)
def test_unknown_and_wrongly_typed_fields_are_faults_with_line_and_column(text, said, tmp_path, monkeypatch, capsys):
    path = tmp_path / "pod.yaml"
    path.write_text(text)
    assert run(["migrate", str(path)]) == ExitCode.BAD_INPUT
    assert f"{path}{said}" in capsys.readouterr().err
    for command in (["migrate", "-"], ["explain", "--fleet", "t4", "-f", "-"]):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        assert run(command) == ExitCode.BAD_INPUT
        assert f"standard input{said}" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["explain", "--fleet", "t4", "-f"], ["cel", "lint"], ["claims", "-f"]], ids=str)
def test_a_key_that_occurs_twice_is_a_fault_with_line_and_column(command, tmp_path, capsys):
    path = tmp_path / "pod.yaml"
    path.write_text(FAULTY.replace("imagee: x", "image: x\n      name: other"))
    assert run([*command, str(path)]) == ExitCode.BAD_INPUT
    assert f"{path}:8:7 is neither YAML nor JSON: key 'name' occurs twice in one mapping" in capsys.readouterr().err


def test_for_a_variable_that_was_not_filled_in_a_remedy_is_suggested(tmp_path, capsys):
    path = tmp_path / "pod.yaml"
    path.write_text(FAULTY.replace("imagee", "image").replace("gpu: 1", "gpu: '${GPUS}'"))
    assert run(["migrate", str(path)]) == ExitCode.BAD_INPUT
    assert "fill in variables (envsubst, helm template)" in capsys.readouterr().err


VOLCANO = """\
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: train}
spec: {tasks: [{name: w, replicas: 2, template: {spec: {containers: [{name: main, image: x}]}}}]}
"""


def test_an_object_of_another_group_is_not_checked_against_the_kind_of_that_name_in_kubernetes(tmp_path, capsys):
    path = tmp_path / "job.yaml"
    path.write_text(VOLCANO)
    assert run(["simulate", "-f", str(path), "--fleet", "t4"]) == ExitCode.OK
    assert "train-0, train-1" in capsys.readouterr().out
    path.write_text(VOLCANO.replace("batch.volcano.sh/v1alpha1", "batch/v1"))
    assert run(["simulate", "-f", str(path), "--fleet", "t4"]) == ExitCode.BAD_INPUT
    assert "spec.tasks is not a field of the API" in capsys.readouterr().err


CLAIM = """apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {{name: c{uid}}}
spec:
  devices:
    requests:
    - name: a
      exactly: {{deviceClassName: gpu.nvidia.com}}
    {more}
"""


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("- {name: a, exactly: {deviceClassName: gpu.nvidia.com}}", ":9:7: ResourceClaim c: spec.devices.requests[1]"),
        ("constraints: [{requests: [b], matchAttribute: d/x}]", '"b": must be the name of a request in the claim'),
        ("constraints: [{matchAttribute: numaNode}]", "spec.devices.constraints[0].matchAttribute"),
        ("- {name: B, exactly: {deviceClassName: gpu.nvidia.com}}", "spec.devices.requests[1].name"),
        ("- {name: b}", "exactly one of `exactly` or `firstAvailable` is required"),
        ("config: [{requests: [x], opaque: {driver: d, parameters: {}}}]", "spec.devices.config[0].requests[0]"),
    ],
)
def test_a_claim_that_no_api_server_would_store_is_refused_with_its_place(tmp_path, capsys, more, said):
    file = tmp_path / "claim.yaml"
    for command in (["explain"], ["simulate"]):
        file.write_text(CLAIM.format(uid="", more=more))
        assert run([*command, "-f", str(file), "--fleet", "dgx-h100"]) == ExitCode.BAD_INPUT
        err = capsys.readouterr().err
        assert said in err
        assert "the API server refuses such an object" in err
    file.write_text(CLAIM.format(uid=", uid: 1-2", more=more))  # it came from an API server
    assert "refuses" not in str(run(["explain", "-f", str(file), "--fleet", "dgx-h100"])) + capsys.readouterr().err


REFERRING = """\
spec:
  resourceClaims:
    - {name: gpu, resourceClaimTemplateName: t}
  containers:
    - name: main
      image: x
      resources: {claims: [{name: gpu}]}
"""
POD = f"apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\n{REFERRING}"
DEPLOYMENT = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec:\n  template:\n" + "".join(
    f"    {line}\n" for line in REFERRING.splitlines()
)
WRONG = [
    ("claims: [{name: gpu}]", "claims: [{name: gp}]", 'claims[0]: Not found: "gp": must be one of the names in'),
    ("TemplateName: t", "TemplateName: t, resourceClaimName: c", "spec.resourceClaims[0]: at most one of"),
    (", resourceClaimTemplateName: t", "", "spec.resourceClaims[0]: must specify one of"),
]


@pytest.mark.parametrize("text", [POD, DEPLOYMENT], ids=["a pod", "a template of pods"])
@pytest.mark.parametrize("case", WRONG, ids=["an unknown name", "both kinds", "neither kind"])
def test_a_bad_reference_to_a_claim_is_a_fault(text, case, tmp_path, capsys):
    right, wrong, said = case
    path = tmp_path / "pods.yaml"
    path.write_text(text.replace(right, wrong))
    for command in (["explain", "--fleet", "t4", "-f"], ["simulate", "--fleet", "t4", "-f"]):
        assert run([*command, str(path)]) == ExitCode.BAD_INPUT
        assert said in capsys.readouterr().err
