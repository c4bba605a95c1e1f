"""Every manifest that is shipped passes the real API server's validation and admission."""

from __future__ import annotations

import re
import subprocess

import pytest
import yaml

from cluster.cluster import REPOSITORY, Cluster

FOLDERS = ("deviceclasses", "examples", "deploy")
# A chart's files are templates; other files without a kind are inputs of commands.
MANIFESTS = sorted(
    path.relative_to(REPOSITORY)
    for folder in FOLDERS
    for path in (REPOSITORY / folder).rglob("*.yaml")
    if "helm" not in path.parts
    and re.search(r"^kind:", path.read_text(), re.MULTILINE)
    # A file of Prometheus' operator alone, which is not installed here.
    and "apiVersion: monitoring.coreos.com/" not in path.read_text()
)
NOT_INSTALLED = ("kubevirt.io/",)  # groups whose kinds occur beside ours in a file
ADMIN = {"resource.kubernetes.io/admin-access": "true"}


@pytest.mark.parametrize("manifest", MANIFESTS, ids=str)
def test_the_manifest_passes_a_dry_run_on_the_server(cluster: Cluster, manifest: object) -> None:
    path = REPOSITORY / str(manifest)
    every = [content for content in yaml.safe_load_all(path.read_text()) if content]
    contents = [content for content in every if not content["apiVersion"].startswith(NOT_INSTALLED)]
    # A dry run creates no namespace, so the objects that follow need an existing one.
    own = {it["metadata"]["name"]: it["metadata"].get("labels", {}) for it in contents if it["kind"] == "Namespace"}
    used = {it["metadata"]["namespace"]: {} for it in contents if "namespace" in it["metadata"]}
    made = []
    try:
        for name, labels in (used | own).items():
            if cluster.api.find("Namespace", name) is None:
                meta = {"name": name, "labels": labels}
                cluster.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
                made.append(name)
        said = cluster.kubectl("apply", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump_all(contents))
        assert said.count("(server dry run)") == len(contents), said
    except subprocess.SubprocessError as error:
        pytest.fail(str(error), pytrace=False)
    finally:
        for name in made:
            cluster.api.delete("Namespace", name)
