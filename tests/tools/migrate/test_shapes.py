"""Shapes as they occur in practice: each becomes what is expected, reports what is lost, and changes nothing else."""

from __future__ import annotations

import copy
import re

import pytest
import yaml

from dra_driver.selectors.kubernetes import KubernetesEngine
from dra_driver.tools.migrate import SourceText, migrate
from dra_driver.tools.world.documents import Classes, parse_documents
from dra_driver.tools.world.queries import queries_of
from tests.support.migrate_shapes import SHAPES, expected, migrated

TOPOLOGY = "topology-manager"
LOSSES = {
    "05": {"labels-alone"},
    "06": {TOPOLOGY, "label-kept"},
    "19": {TOPOLOGY, "affinity-kept"},
    "20": set(),
    "21": {"quota-profile"},
    "22": set(),
    "23": {TOPOLOGY, "gpu-count", "preferred-affinity"},
    "24": {TOPOLOGY, "runtime-class", "visible-devices"},
    "31": set(),
    "33": {TOPOLOGY, "sharing-namespace", "sharing-more-than-one"},
    "34": {TOPOLOGY, "sharing-namespace"},
}
by_name = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.stem)


def objects(text):
    return [document.wire for document in parse_documents(text, "test")]


@by_name
def test_a_shape_becomes_what_is_expected(shape):
    assert migrated(shape).new == expected(shape).read_text()


@by_name
def test_what_is_lost_is_reported_and_nothing_else(shape):
    assert {row.code for row in migrated(shape).losses} == LOSSES.get(shape.name[:2], {TOPOLOGY})


@by_name
def test_a_second_run_changes_nothing(shape):
    (again,) = migrate([SourceText(shape.name, migrated(shape).new)])
    assert (again.new, again.changes) == (again.old, ())


@by_name
def test_every_comment_is_kept(shape):
    notes = re.compile(r"(?<=\s)# .*|^# .*", re.MULTILINE)
    assert sorted(notes.findall(migrated(shape).new)) == sorted(notes.findall(shape.read_text()))


@by_name
def test_every_change_is_explained(shape):
    done = migrated(shape)
    before, after = objects(done.old), objects(done.new)
    added = [one for one in after if one["kind"] in {"ResourceClaimTemplate", "ConfigMap"} and one not in before]
    kept = [one for one in after if one not in added]
    assert len(kept) == len(before)
    for old, new in zip(before, kept, strict=True):
        name = f"{old['kind']} {old['metadata'].get('name') or old['metadata'].get('generateName')}"
        explained = [row.path for row in done.changes if row.subject == name]
        for path in differences(old, new):
            assert any(covers(one, path) for one in explained), f"{name}: {path} is not explained"
    reported = " ".join(row.what for row in done.changes)
    assert all(one["metadata"]["name"] in reported for one in added)


def differences(old, new, path=""):
    """Yield the paths at which two values differ, as reports write them."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in {**old, **new}:
            yield from differences(old.get(key), new.get(key), f"{path}.{key}" if path else key)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, pair in enumerate(zip(old, new, strict=True)):
            yield from differences(*pair, f"{path}[{number}]")
    elif old != new:
        yield path


def covers(explained, path):
    """Return whether an explained path is that of a difference, contains it, or is inside of it."""
    explained = re.sub(r"^items\[\d+\]\.", "", explained)
    return path.startswith(explained) or explained.startswith(path)


@by_name
def test_every_claim_and_request_that_a_container_names_exists(shape):
    found = objects(migrated(shape).new)
    templates = {one["metadata"]["name"]: one for one in found if one["kind"] == "ResourceClaimTemplate"}
    for text in re.findall(r'resourceClaimTemplateName"?: "?([\w.-]+)', migrated(shape).new):
        assert text in templates
    for one in found:
        for spec in pod_specs(one):
            claims = {row["name"]: row["resourceClaimTemplateName"] for row in spec.get("resourceClaims", ())}
            for container in [*spec["containers"], *spec.get("initContainers", ())]:
                for row in container.get("resources", {}).get("claims", ()):
                    template = templates[claims[row["name"]]]
                    requests = {r["name"] for r in template["spec"]["spec"]["devices"]["requests"]}
                    assert row.get("request") in {None, *requests}


def pod_specs(value):
    if isinstance(value, dict):
        if isinstance(value.get("containers"), list):
            yield value
        for inner in value.values():
            yield from pod_specs(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from pod_specs(inner)


@by_name
@pytest.mark.parametrize("version", ["1.34", "1.35", "1.36"])
def test_every_selector_is_accepted_by_the_api_server(shape, version):
    documents = [one for one in parse_documents(migrated(shape).new, "test") if one.kind == "ResourceClaimTemplate"]
    engine = KubernetesEngine(version)
    texts = {
        row["cel"]["expression"]
        for one in documents
        for request in one.wire["spec"]["spec"]["devices"]["requests"]
        for row in request["exactly"].get("selectors", ())
    }
    for text in texts:
        assert engine.compile(text, environment="new").admissible, text


def test_the_shapes_include_every_family_of_workloads():
    kinds = {one["kind"] for shape in SHAPES for one in objects(shape.read_text())}
    assert kinds >= {"Pod", "Deployment", "Job", "StatefulSet", "DaemonSet", "CronJob", "ReplicaSet", "PyTorchJob"}
    assert kinds >= {"RayCluster", "Workflow", "InferenceService", "ResourceQuota", "ConfigMap", "LeaderWorkerSet"}
    assert len(SHAPES) >= 30


def test_expected_and_migrated_texts_can_be_read_by_pyyaml():
    for shape in SHAPES:
        for text in (expected(shape).read_text(), copy.copy(migrated(shape).new)):
            assert list(yaml.safe_load_all(text))


def test_requests_for_shipped_classes_are_found():
    text = expected(SHAPES[0]).read_text()
    documents = [one for one in parse_documents(text, "test") if one.kind == "ResourceClaimTemplate"]
    assert [query.title for query in queries_of((), documents, Classes([], None), None)]
