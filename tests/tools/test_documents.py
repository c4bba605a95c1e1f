"""What commands write for programs conforms to docs/schemas, for every kind of document."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import jsonschema
import pytest
import yaml

from dra_driver.node.health.fault_record import HealthRecord
from dra_driver.node.health.faults import FaultKey, Subject
from dra_driver.node.health.stored_health import RECORD, HealthStore, record_wire
from dra_driver.node.health.xids import Indication
from dra_driver.simulator.api_server import EmbeddedApi
from dra_driver.tools.main import run
from dra_driver.tools.schemas import schema_of, text_of
from dra_driver.tools.world.access import DocumentKind

DRIVER = "gpu.nvidia.com"
ROOT = Path(__file__).resolve().parents[2]
CLAIM = str(ROOT / "examples/resourceclaims/01-one-gpu.yaml")
FLEET = ("--fleet", "demo-h100")
CEL = ("-e", "device.driver == 'gpu.nvidia.com'", *FLEET)
COMMANDS = {
    DocumentKind.NODE_OFFER: ["devices", "--hardware", "simulated:demo-h100", "--node-name", "n1"],
    DocumentKind.CONFIG_CHECK: ["check-config", str(ROOT / "examples/sharing/node/rules.yaml"), CLAIM],
    DocumentKind.DOCTOR_REPORT: ["doctor", "--only", "cluster"],
    DocumentKind.SLICE_TREE: ["slices", *FLEET],
    DocumentKind.CLAIM_TREE: ["claims", "-f", CLAIM],
    DocumentKind.CLAIMS_IN_USE: ["in-use"],
    DocumentKind.EXPLANATIONS: ["explain", "-f", CLAIM, *FLEET],
    DocumentKind.SIMULATION: ["simulate", "-f", CLAIM, *FLEET],
    DocumentKind.MIGRATION: ["migrate", str(ROOT / "examples/resourceclaims/24-extended-resource.yaml")],
    DocumentKind.SELECTOR_MATCHES: ["cel", "test", *CEL],
    DocumentKind.SELECTOR_EXPLANATIONS: ["cel", "explain", *CEL],
    DocumentKind.SELECTOR_FINDINGS: ["cel", "lint", *CEL],
    DocumentKind.SELECTOR_TESTS: ["cel", "verify", str(ROOT / "examples/selectors")],
}


@pytest.mark.parametrize("kind", DocumentKind, ids=str)
def test_the_schema_in_the_docs_is_the_one_of_the_code(kind):
    path = ROOT / "docs/schemas" / f"{kind}.json"
    assert path.read_text() == text_of(kind), "run make docs"


@pytest.mark.parametrize("form", ["json", "yaml"])
@pytest.mark.parametrize("kind", COMMANDS, ids=str)
def test_what_a_command_writes_conforms_to_its_schema(kind, form, tmp_path, monkeypatch, capsys):
    with EmbeddedApi() as api:
        monkeypatch.setenv("KUBECONFIG", str(api.write_kubeconfig(tmp_path / "kubeconfig")))
        run([*COMMANDS[kind], "-o", form])
    out = capsys.readouterr().out
    document = json.loads(out) if form == "json" else yaml.safe_load(out)
    jsonschema.validate(document, schema_of(kind))
    assert "&id" not in out, "no anchors"


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_cordons_and_the_health_of_a_node_conform_to_their_schemas(form, tmp_path, capsys):
    (tmp_path / DRIVER).mkdir()
    record = HealthRecord("boot-1")
    record.observe(Subject("0000:01:00.0", (19, 3)), Indication(FaultKey.ECC_THRESHOLD, is_bad=True), 900.0)
    HealthStore(tmp_path / DRIVER).write({RECORD: record_wire(record)})
    where = ("--kubelet-plugins-directory-path", str(tmp_path), "-o", form)

    def written(kind, *words):
        status = run([*words, *where])
        out = capsys.readouterr().out
        document = json.loads(out) if form == "json" else yaml.safe_load(out)
        jsonschema.validate(document, schema_of(kind))
        return status, document

    _, made = written(DocumentKind.CORDON, "cordon", "gpu-0000-1b-00-0", "--reason", "fan", "--until", "2h")
    assert (made["device"], made["isCordoned"], made["reason"]) == ("gpu-0000-1b-00-0", True, "fan")
    assert made["until"] is not None
    _, health = written(DocumentKind.NODE_HEALTH, "health", "show")
    cordon, fault = health["faults"]  # in the order of importance of their keys
    assert (fault["device"], fault["partition"]) == ("gpu-0000-01-00-0", {"profileId": 19, "start": 3})
    assert (cordon["device"], cordon["fault"], cordon["message"]) == ("gpu-0000-1b-00-0", "cordoned", "fan")
    assert written(DocumentKind.CORDON, "uncordon", "gpu-0000-1b-00-0")[0] == 0
    status, again = written(DocumentKind.CORDON, "uncordon", "gpu-0000-1b-00-0")
    assert (status, again["isCordoned"]) == (1, False)


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_the_output_of_the_demo_conforms_to_its_schema(form, tmp_path, capsys):
    shutil.copy(CLAIM, tmp_path)
    assert run(["demo", "--examples", str(tmp_path), "-o", form]) == 0
    out = capsys.readouterr().out
    document = json.loads(out) if form == "json" else yaml.safe_load(out)
    jsonschema.validate(document, schema_of(DocumentKind.DEMO_RUN))
    assert [(one["file"], one["isGood"]) for one in document["examples"]] == [("01-one-gpu.yaml", True)]


NODE = {"metadata": {"name": "n"}}
BATCHES = [
    (DocumentKind.SELECTOR_VERDICT, ["cel", "batch"], {"id": 1, "expression": "device.driver == 'x'", "devices": [{}]}),
    (DocumentKind.SELECTOR_VERDICT, ["cel", "batch"], {"id": "b", "expression": "device.driver == 2"}),
    (DocumentKind.SELECTOR_VERDICT, ["cel", "batch"], {"id": None, "expression": "true"}),
    (DocumentKind.ALLOCATION_VERDICT, ["simulate", "--batch"], {"id": 1, "input": {"nodes": [NODE]}}),
    (DocumentKind.BATCH_FAULT, ["cel", "batch"], {"id": 3, "expression": 4}),
    (DocumentKind.BATCH_FAULT, ["simulate", "--batch"], {"id": 3}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "words", "line"), BATCHES)
def test_every_answer_of_a_batch_has_the_envelope(kind, words, line, tmp_path, capsys):
    path = tmp_path / "batch.jsonl"
    path.write_text(json.dumps(line) + "\n")
    run([*words, str(path)])
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, schema_of(kind))
    assert document["id"] == line["id"]


def test_one_explanation_and_a_claim_conform_to_their_schemas(tmp_path, capsys):
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}}
    meta = {"name": "c", "namespace": "default"}
    wire = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": meta, "spec": spec}
    path = tmp_path / "claim.yaml"
    path.write_text(yaml.safe_dump(wire))
    run(["explain", "claim", "c", "-f", str(path), *FLEET, "-o", "json"])
    jsonschema.validate(json.loads(capsys.readouterr().out), schema_of(DocumentKind.EXPLANATION))
    run(["claims", "-f", str(path), "-o", "json"])
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, schema_of(DocumentKind.CLAIM_TREE))
    assert [one["name"] for one in document["claims"]] == ["default/c"]
