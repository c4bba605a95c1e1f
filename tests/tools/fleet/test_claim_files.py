"""`dra-driver claims -o wide` on a node shows the content of the files that the containers of a claim read."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml

from dra_driver.base.errors import ExitCode
from dra_driver.tools.main import run
from tests.support.plugin.mig_parts import MigRig, small
from tests.support.plugin.parts import DRIVER, POOL

CLAIM = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"name": "claim-a", "namespace": "ns", "uid": "a"},
    "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "mig.nvidia.com"}}]}},
    "status": {
        "allocation": {"devices": {"results": [{"request": "gpu", "driver": DRIVER, "pool": POOL, "device": small(0)}]}}
    },
}


@pytest.fixture
def rig(tmp_path):
    MigRig.has_metadata = True
    rig = MigRig(tmp_path / "node")
    yield rig
    MigRig.has_metadata = False
    rig.close()


@pytest.fixture
def claims(rig, tmp_path, capsys, monkeypatch):
    """A function that shows the claim, with the files below the node's CDI folder."""
    monkeypatch.setenv("COLUMNS", "2000")
    (tmp_path / "claims.yaml").write_text(yaml.safe_dump(CLAIM))

    def show(*more: str) -> str:
        assert run(["claims", "-f", str(tmp_path / "claims.yaml"), "--cdi-root", str(rig.cdi), *more]) == ExitCode.OK
        return str(capsys.readouterr().out)

    return show


@pytest.fixture
def file(rig) -> Path:
    rig.now_prepare("a", small(0))
    (found,) = (rig.cdi / f"{DRIVER}-metadata").iterdir()
    return found


def test_the_partition_of_a_claim_is_shown_with_its_uuid_and_all_that_the_containers_can_read(rig, claims, file):
    said = claims("-o", "wide")
    assert f"/var/run/kubernetes.io/dra-device-attributes/resourceclaims/claim-a/gpu/{DRIVER}-metadata.json" in said
    assert f"uuid={rig.partitions()[0].uuid}" in said
    assert "resource.kubernetes.io/pciBusID=0000:01:00.0" in said
    assert "generation 1" in said
    assert "1 device described by files of this node" in said
    assert rig.partitions()[0].uuid not in claims(), "shown without -o wide"


def test_elsewhere_than_on_the_node_the_output_says_where_the_files_are(claims):
    assert "they are on the claims' nodes, if deviceMetadata is on there" in claims("-o", "wide")


def test_a_document_of_an_unknown_version_is_skipped_for_one_of_a_known_version(claims, file):
    first = json.loads(file.read_text().splitlines()[0])
    newer = {**first, "apiVersion": "metadata.resource.k8s.io/v7", "requests": 5}
    file.write_text(json.dumps(newer, indent=1) + file.read_text())
    assert "generation 1" in claims("-o", "wide")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it has no DeviceMetadata"),
        (b"\xff", "it is not JSON"),
        (b"[" * 100_000, "it is not JSON"),
        (b"[1]", "it is not JSON"),
        (b"{}" * 200_000, "it is larger than 262144 bytes"),
        (b'{"apiVersion":"metadata.resource.k8s.io/v1alpha1","kind":"Pod"}', "it has no DeviceMetadata"),
        (b'{"apiVersion":"metadata.resource.k8s.io/v1alpha1","kind":"DeviceMetadata"}', "a field is missing"),
        (b'{"apiVersion":{},"kind":"DeviceMetadata"}', "it is not JSON"),
        (b'{"apiVersion":"v1"}' * 10_000, "it has no DeviceMetadata"),
    ],
)
def test_a_file_that_cannot_be_used_is_reported_with_its_claim(claims, file, content, why):
    file.write_bytes(content)
    assert f"a_gpu.json can't be used: {why}" in claims("-o", "wide")


def test_a_file_about_another_claim_and_one_that_is_not_regular_are_not_used(claims, file):
    file.write_text(file.read_text().replace('"uid":"a"', '"uid":"b"'))
    assert "it is about another claim, b" in claims("-o", "wide")
    secret = file.parent.parent / "secret"
    file.rename(secret)
    file.symlink_to(secret)
    assert "a_gpu.json can't be used" in claims("-o", "wide")
    file.unlink()
    os.mkfifo(file)
    assert "it is not a regular file" in claims("-o", "wide")
