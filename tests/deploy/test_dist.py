"""The files of a release: equal bytes from the same checkout, one version, and all that commands need in the wheel."""

from __future__ import annotations

import configparser
import hashlib
import importlib.util
import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from cluster.components import parts
from dra_driver import __version__

ROOT = Path(__file__).resolve().parents[2]
DIGEST = "sha256:" + "0" * 64


@pytest.fixture(scope="module")
def dist():
    spec = importlib.util.spec_from_file_location("deploy_dist", ROOT / "deploy" / "dist.py")
    module = importlib.util.module_from_spec(spec)
    before = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = before
    return module


def test_the_wheel_is_reproducible_and_has_what_its_commands_need(dist, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, second = dist.wheel(tmp_path / "a", __version__), dist.wheel(tmp_path / "b", __version__)
    assert first.read_bytes() == second.read_bytes()
    with zipfile.ZipFile(first) as archive:
        names = set(archive.namelist())
        entry_points = configparser.ConfigParser()
        entry_points.read_string(archive.read(f"dra_driver-{__version__}.dist-info/entry_points.txt").decode())
    assert set(entry_points["console_scripts"]) == {"dra-driver", "kubectl-dra", "kubectl_complete-dra"}
    for folder in ("deviceclasses", "examples"):
        shipped = {path.relative_to(ROOT).as_posix() for path in (ROOT / folder).rglob("*.yaml")}
        assert {f"dra_driver/{name}" for name in shipped} <= names
    profiles = (ROOT / "dra_driver").rglob("*.yaml")
    assert {path.relative_to(ROOT).as_posix() for path in profiles} <= names
    bill = json.loads((tmp_path / "a" / f"{first.name}.cdx.json").read_text())
    named = {part["name"]: part["version"] for part in bill["components"]}
    assert {"grpcio", "protobuf", "pydantic", "click"} <= named.keys()
    assert f"grpcio=={named['grpcio']} " in (ROOT / "requirements.lock").read_text()
    assert bill["metadata"]["component"]["version"] == __version__


def test_the_packaged_chart_is_reproducible_has_the_given_version_and_renders(dist, tmp_path: Path) -> None:
    helm = shutil.which("helm") or (str(parts.HELM.path / "helm") if parts.HELM.built() else "")
    if not helm:
        pytest.skip("helm is neither on PATH nor built (make cluster-binaries)")
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first = dist.chart(tmp_path / "a", "7.8.9", helm, DIGEST)
    assert first.read_bytes() == dist.chart(tmp_path / "b", "7.8.9", helm, DIGEST).read_bytes()
    with tarfile.open(first) as archive:
        names = archive.getnames()
    assert names[0] == "dra-driver/Chart.yaml"
    classes = {f"dra-driver/deviceclasses/{path.name}" for path in (ROOT / "deviceclasses").glob("*.yaml")}
    assert classes <= set(names)
    command = [helm, "template", "x", str(first), "--kube-version", "1.35.0", "--namespace", "gpus"]
    said = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
    assert "image: localhost/dra-driver:7.8.9" in said
    assert "name: gpu.nvidia.com" in said
    bill = json.loads((tmp_path / "a" / f"{first.name}.cdx.json").read_text())
    assert bill["components"][0]["name"] == "localhost/dra-driver:7.8.9"


def test_the_checksums_pass_sha256sum(dist, tmp_path: Path) -> None:
    for name in ("b.whl", "a.tgz"):
        (tmp_path / name).write_text(name)
    dist.sums(tmp_path)
    assert dist.sums(tmp_path).splitlines()[0] == f"{hashlib.sha256(b'a.tgz').hexdigest()}  a.tgz"
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=tmp_path, check=True, capture_output=True)
