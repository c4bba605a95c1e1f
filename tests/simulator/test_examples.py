"""Example files: what is read from them, and that every fault in them is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from dra_driver.base.errors import InputError
from dra_driver.node.claims.metadata import DescribedDevice
from dra_driver.simulator.container_view import ContainerDeviceNode, ContainerView
from dra_driver.simulator.example import (
    ChosenDevice,
    ClaimReport,
    ExampleReport,
    PodReport,
    load_example,
    load_examples,
    mismatch,
)
from dra_driver.simulator.scheduler import Choice
from dra_driver.simulator.sentences import (
    ClaimAgrees,
    ClaimHolds,
    ClaimStatusHas,
    ContainerHasEnv,
    ContainerHasNodes,
    ContainerReads,
    ContainersSee,
    NodeHasLabel,
    PodPends,
    PodRuns,
)

SHIPPED = Path(__file__).parents[2] / "examples" / "resourceclaims"

BODY = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: shared}
spec: {devices: {requests: []}}
---
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  resourceClaims:
    - {name: own, resourceClaimTemplateName: t}
    - {name: given, resourceClaimName: shared}
  containers: [{name: one}, {name: two}]
"""


def write(tmp_path, *lines, body=BODY):
    path = tmp_path / "example.yaml"
    path.write_text("# The intent,\n# in two lines.\n#\n# More.\n" + "".join(f"# {line}\n" for line in lines) + body)
    return path


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("pod p runs", PodRuns("p")),
        ("pod p stays pending", PodPends("p", "")),
        ("pod p stays pending: 0 match", PodPends("p", "0 match")),
        ("claim shared holds 2", ClaimHolds("shared", 2, ())),
        (
            "claim p/own holds 1 where type=gpu memory>=40Gi",
            ClaimHolds("p/own", 1, (("type", "=", "gpu"), ("memory", ">=", "40Gi"))),
        ),
        ("claim shared agrees on a.b/c", ClaimAgrees("shared", "a.b/c")),
        ("container p/one has 1 node /dev/x*", ContainerHasNodes("p/one", 1, "/dev/x*")),
        ("container p/one has 0 nodes /dev/x*", ContainerHasNodes("p/one", 0, "/dev/x*")),
        ("container p/one has env A=b c", ContainerHasEnv("p/one", "A", "b c")),
        ("container p/one reads a.b/c=d* for gpu", ContainerReads("p/one", "gpu", "a.b/c", "d*")),
        ("claim shared says uuid=d* in its status", ClaimStatusHas("shared", "uuid", "d*")),
        ("the node has label a.b/c=d*", NodeHasLabel("a.b/c", "d*")),
        ("containers p/one p/two see the same nodes", ContainersSee("p/one", "p/two", is_same=True)),
        ("containers p/one p/two see different nodes", ContainersSee("p/one", "p/two", is_same=False)),
    ],
)
def test_every_sentence_is_understood(tmp_path, text, meaning):
    example = load_example(write(tmp_path, f"expect: {text}"))
    (sentence,) = example.expects
    assert (sentence.text, sentence.line, sentence.meaning) == (text, 5, meaning)
    assert example.intent == "The intent, in two lines."
    assert [pod["metadata"]["name"] for pod in example.pods] == ["p"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("pod p runs well", "not a known expectation"),
        ("", "not a known expectation"),
        ("claim shared holds two", "not a known expectation"),
        ("claim shared holds 1 where type", "neither ATTRIBUTE=VALUE"),
        ("claim shared agrees on name", "not a known expectation"),
        ("pod q runs", "no pod q"),
        ("claim q holds 1", "no claim q"),
        ("claim p/given holds 1", "no claim p/given"),
        ("container p/three has 1 node x", "no container p/three"),
        ("containers p/one q/two see the same nodes", "no container q/two"),
    ],
)
def test_an_invalid_sentence_is_refused_with_its_line(tmp_path, text, why):
    with pytest.raises(InputError, match=r"example\.yaml:6: ") as caught:
        load_example(write(tmp_path, "expect: pod p runs", f"expect: {text}"))
    assert why in caught.value.message


_CLAIM = "kind: ResourceClaim\napiVersion: resource.k8s.io/v1\nmetadata: {name: c}\n"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("a: [", "example.yaml:"),
        ("- 1", "document 1 is not a Kubernetes object"),
        ("kind: Pod\napiVersion: v1", "document 1 is not a Kubernetes object"),
        ("kind: StatefulSet\napiVersion: apps/v1\nmetadata: {name: x}", "apps/v1 StatefulSet is not served"),
        (f"apiVersion: {'9' * 5000}", "a number of 5,000 characters"),
        ("[" * 1000, "nested too deeply"),
        ("kind: Pod\napiVersion: v1\nmetadata: [name]", "document 1 is not a Kubernetes object"),
        ("kind: Pod\napiVersion: v1\nmetadata: {name: p}\nspec: 1", "does not have the shape of its kind"),
        ("kind: Pod\napiVersion: v1\nmetadata: {name: p}\nspec: {resourceClaims: [1]}", "the shape of its kind"),
        (f"{_CLAIM}spec: {{devices: x}}", "does not have the shape of its kind"),
        (f"{_CLAIM}spec: {{devices: {{requests: abc}}}}", "does not have the shape of its kind"),
        ("#" * (1 << 20), "larger than 1 MiB"),
    ],
)
def test_invalid_objects_are_refused(tmp_path, body, why):
    with pytest.raises(InputError) as caught:
        load_example(write(tmp_path, "expect: pod p runs", body=body))
    assert why in caught.value.message


def test_a_file_without_an_expectation_and_an_empty_folder_are_refused(tmp_path):
    with pytest.raises(InputError, match="no line begins with"):
        load_example(write(tmp_path))
    with pytest.raises(InputError, match="no YAML file"):
        load_examples(tmp_path / "absent")


def test_the_shipped_examples_are_many_and_each_states_its_intent():
    examples = load_examples(SHIPPED)
    assert len(examples) >= 20
    for example in examples:
        assert example.intent.endswith("."), example.path
        assert example.pods, example.path
        assert all(wire["apiVersion"] in ("v1", "resource.k8s.io/v1") for wire in example.objects)


# -- expectations, compared with reports of an example ----------------------------------------------------------------

GPU = {
    "name": "g",
    "attributes": {"type": {"string": "gpu"}, "ok": {"bool": True}},
    "capacity": {"m": {"value": "2Gi"}},
}
CHOICE = Choice("r", ("d.example.com", "p", "g"), False, "")


DESCRIBED = DescribedDevice("r", "d.example.com", "p", "g", (("uuid", "GPU-1"),))


def node(path):
    return ContainerDeviceNode(path, path, "c", 1, 3, "rw")


@pytest.fixture
def report():
    views = {
        "one": ContainerView(env=("A=b",), device_nodes=(node("/dev/x0"), node("/dev/ctl"))),
        "two": ContainerView(device_nodes=(node("/dev/ctl"), node("/dev/x0"))),
        "three": ContainerView(device_nodes=(node("/dev/x1"),)),
        "bare": ContainerView(),
    }
    made = ExampleReport(None)
    made.pods = [
        PodReport("p", is_placed=True, containers=views, described={"one": (DESCRIBED,)}),
        PodReport("q", failure="r: nothing fits"),
        PodReport("s", is_placed=True, failure="prepare failed"),
    ]
    made.labels = {"a.b/count": "4"}
    other = {"name": "h", "attributes": {"type": {"string": "gpu"}, "ok": {"bool": False}}}
    made.claims = [
        ClaimReport("p/c", "p-c-x", "default", "u", (ChosenDevice(CHOICE, GPU), ChosenDevice(CHOICE, other))),
        ClaimReport("q/c", "q-c-x", "default", "v", (), "nothing fits"),
    ]
    made.claims[0].device_status = {"Ready": "True"}
    return made


MET = [
    PodRuns("p"),
    PodPends("q", "fits"),
    ClaimHolds("p/c", 2, (("type", "=", "gpu"),)),
    ClaimAgrees("p/c", "d.example.com/type"),
    ContainerHasNodes("p/one", 1, "/dev/x*"),
    ContainerHasNodes("p/bare", 0, "*"),
    ContainerHasEnv("p/one", "A", "?"),
    ContainerReads("p/one", "r", "uuid", "GPU-*"),
    ClaimStatusHas("p/c", "Ready", "T*"),
    NodeHasLabel("a.b/count", "[1-9]"),
    ContainersSee("p/one", "p/two", is_same=True),
    ContainersSee("p/one", "p/three", is_same=False),
]
UNMET = [
    (PodRuns("q"), "nothing fits"),
    (PodRuns("s"), "prepare failed"),
    (PodRuns("z"), "never started"),
    (PodPends("p", ""), "it was placed"),
    (PodPends("s", ""), "it was placed"),
    (PodPends("q", "taint"), "but because of"),
    (PodPends("z", ""), "never started"),
    (ClaimHolds("p/c", 1, ()), "it holds 2"),
    (ClaimHolds("p/c", 2, (("ok", "=", "true"),)), "does not have ok=true"),
    (ClaimHolds("p/c", 2, (("m", ">=", "1Gi"),)), "does not have m>=1Gi"),
    (ClaimHolds("p/c", 2, (("m", ">=", "lots"),)), "does not have m>=lots"),
    (ClaimHolds("q/c", 1, ()), "nothing fits"),
    (ClaimHolds("z/c", 1, ()), "never created"),
    (ClaimAgrees("p/c", "d.example.com/ok"), "have"),
    (ClaimAgrees("p/c", "d.example.com/none"), "have"),
    (ClaimAgrees("q/c", "d.example.com/type"), "have"),
    (ContainerHasNodes("p/one", 2, "/dev/x*"), "1 of them"),
    (ContainerHasNodes("z/one", 1, "/dev/x*"), "sees none"),
    (ContainerHasEnv("p/one", "A", "c"), "environment"),
    (ContainerHasEnv("p/one", "B", "*"), "environment"),
    (ContainerReads("p/one", "r", "uuid", "MIG-*"), "it reads {'uuid': 'GPU-1'}"),
    (ContainerReads("p/one", "s", "uuid", "*"), "it reads nothing"),
    (ContainerReads("p/two", "r", "uuid", "*"), "it reads nothing"),
    (ClaimStatusHas("p/c", "Ready", "False"), "its status has {'Ready': 'True'}"),
    (ClaimStatusHas("z/c", "Ready", "*"), "its status has {}"),
    (NodeHasLabel("a.b/count", "5"), "its labels are"),
    (NodeHasLabel("a.b/none", "*"), "its labels are"),
    (ContainersSee("p/one", "p/two", is_same=False), "they see"),
    (ContainersSee("p/one", "p/three", is_same=True), "they see"),
    (ContainersSee("p/bare", "z/bare", is_same=True), "they see"),
]


@pytest.mark.parametrize("expectation", MET, ids=str)
def test_an_expectation_that_is_met_has_no_message(report, expectation):
    assert mismatch(expectation, report) == ""


@pytest.mark.parametrize(("expectation", "why"), UNMET, ids=str)
def test_an_expectation_that_is_not_met_says_what_was_seen(report, expectation, why):
    assert why in mismatch(expectation, report)


def test_a_report_is_good_only_without_findings_and_leftovers():
    report = ExampleReport(None)
    assert report.is_good
    report.left = ["CDI file"]
    assert not report.is_good
    report.left, report.unmet = [], ["line 1"]
    assert not report.is_good
