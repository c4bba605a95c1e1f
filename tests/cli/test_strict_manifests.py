"""Unknown and wrongly typed fields are faults with line and column in every command that reads manifests."""

from __future__ import annotations

import io

import pytest

from dra_driver.cli.main import run
from dra_driver.model.errors import ExitCode

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
def test_unknown_and_wrongly_typed_fields_are_faults_with_their_place(text, said, tmp_path, monkeypatch, capsys):
    path = tmp_path / "pod.yaml"
    path.write_text(text)
    assert run(["migrate", str(path)]) == ExitCode.BAD_INPUT
    assert f"{path}{said}" in capsys.readouterr().err
    for command in (["migrate", "-"], ["explain", "--fleet", "t4", "-f", "-"]):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        assert run(command) == ExitCode.BAD_INPUT
        assert f"standard input{said}" in capsys.readouterr().err


def test_a_variable_that_was_not_filled_in_gets_the_remedy(tmp_path, capsys):
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


def test_a_kind_of_another_group_is_not_held_against_kubernetes_own_of_that_name(tmp_path, capsys):
    path = tmp_path / "job.yaml"
    path.write_text(VOLCANO)
    assert run(["simulate", "-f", str(path), "--fleet", "t4"]) == ExitCode.OK
    assert "train-0, train-1" in capsys.readouterr().out
    path.write_text(VOLCANO.replace("batch.volcano.sh/v1alpha1", "batch/v1"))
    assert run(["simulate", "-f", str(path), "--fleet", "t4"]) == ExitCode.BAD_INPUT
    assert "spec.tasks is not a field of the API" in capsys.readouterr().err
