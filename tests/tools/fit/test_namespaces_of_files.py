"""`explain KIND NAME` with files: the object's namespace is that of the file, as in kubectl, and -n chooses one."""

from __future__ import annotations

from pathlib import Path

import pytest

from dra_driver.base.errors import ExitCode
from dra_driver.tools.main import run

CLAIM = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: %s, namespace: %s}
spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]}}
"""
DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: server, namespace: %s}
spec:
  selector: {matchLabels: {app: server}}
  template:
    metadata: {labels: {app: server}}
    spec: {containers: [{name: main, image: server}]}
"""


@pytest.fixture
def explain(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    def ask(documents: list[str], *words: str) -> tuple[int, str]:
        (tmp_path / "objects.yaml").write_text("---".join(documents))
        code = run(["explain", *words, "-f", str(tmp_path / "objects.yaml"), "--fleet", "l40s"])
        said = capsys.readouterr()
        return code, said.out + said.err

    return ask


@pytest.mark.parametrize("words", [("claim", "mine"), ("claim", "mine", "-n", "team-a")])
def test_a_claim_is_found_in_the_namespace_that_its_file_names(explain, words):
    code, said = explain([CLAIM % ("mine", "team-a"), CLAIM % ("other", "team-b")], *words)
    assert (code, "fits on l40s-1" in said) == (ExitCode.OK, True), said


def test_a_workload_is_found_in_the_namespace_that_its_file_names(explain):
    code, said = explain([DEPLOYMENT % "team-a"], "deployment/server")
    assert (code, "asks for no device" in said) == (ExitCode.OK, True), said


@pytest.mark.parametrize(
    ("document", "word"), [(CLAIM % ("server", "%s"), "claim"), (DEPLOYMENT, "deployment")], ids=["claim", "deployment"]
)
def test_a_name_in_several_namespaces_is_refused_until_n_chooses_one(explain, document, word):
    both = [document % "team-b", document % "team-a"]
    code, said = explain(both, word, "server")
    assert (code, f"{word} server is in the namespaces team-a, team-b" in said) == (ExitCode.USAGE, True), said
    assert explain(both, word, "server", "-n", "team-b")[0] == ExitCode.OK


def test_a_claim_of_another_namespace_than_n_names_is_missing_and_its_own_is_shown(explain):
    code, said = explain([CLAIM % ("mine", "team-a")], "claim", "mine", "-n", "team-b")
    assert code == ExitCode.BAD_INPUT
    assert "there is no claim team-b/mine" in said
    assert "did you mean team-a/mine?" in said


def test_a_name_that_no_namespace_has_is_missing(explain):
    code, said = explain([CLAIM % ("mine", "team-a")], "claim", "mime")
    assert code == ExitCode.BAD_INPUT
    assert "there is no claim mime" in said
    assert "did you mean team-a/mine?" in said
    assert explain([DEPLOYMENT % "team-a"], "deployment", "sever")[0] == ExitCode.BAD_INPUT


def test_a_claim_without_a_namespace_is_in_default(explain):
    plain = CLAIM.replace(", namespace: %s", "") % "mine"
    assert explain([plain], "claim", "mine")[0] == ExitCode.OK
    code, said = explain([plain, CLAIM % ("mine", "team-a")], "claim", "mine")
    assert (code, "is in the namespaces default, team-a" in said) == (ExitCode.USAGE, True), said
