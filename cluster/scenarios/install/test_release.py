"""What `make dist` makes, checked as its user would check it: checksums, bills of materials, an image for each CPU.

It needs no cluster. The wheel is tried in test_wheel.py, the chart in scenarios/chart; `make test` reads the image.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from cluster.cluster import REPOSITORY
from cluster.components import parts
from dra_driver import __version__

pytestmark = pytest.mark.soak
CHART, IMAGE = f"dra-driver-{__version__}.tgz", f"dra-driver-{__version__}-image.tar"
WHEEL = f"dra_driver-{__version__}-py3-none-any.whl"
ARCHITECTURES = {"amd64", "arm64"}


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `make dist` fills."""
    folder = tmp_path_factory.mktemp("release") / "dist"
    command = [sys.executable, "deploy/dist.py", "--output", str(folder), "--helm", str(parts.HELM.path / "helm")]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def read(release: Path, name: str) -> dict[str, Any]:
    """Return a document of the release."""
    found: dict[str, Any] = json.loads((release / name).read_text())
    return found


def test_checksums_name_everything_that_is_handed_out_and_are_right(release: Path) -> None:
    checked = subprocess.run(
        ["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=release, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    named = {line.split()[1] for line in (release / "SHA256SUMS").read_text().splitlines()}
    bills = {f"{name}.cdx.json" for name in (WHEEL, CHART)}
    bills |= {f"dra-driver-{__version__}-image-{name}.cdx.json" for name in ARCHITECTURES}
    assert named == {WHEEL, CHART, IMAGE, *bills} == {one.name for one in release.iterdir()} - {"SHA256SUMS"}


def test_each_bill_of_materials_has_the_digest_of_its_file(release: Path) -> None:
    for name in (WHEEL, CHART):
        subject = read(release, f"{name}.cdx.json")["metadata"]["component"]
        [digest] = [one["content"] for one in subject["hashes"] if one["alg"] == "SHA-256"]
        assert digest == hashlib.sha256((release / name).read_bytes()).hexdigest()
        assert subject["version"] == __version__
    parts = [read(release, f"dra-driver-{__version__}-image-{name}.cdx.json")["components"] for name in ARCHITECTURES]
    assert all(len(one) > 20 for one in parts)


def test_the_image_has_a_manifest_for_each_architecture_and_the_chart_names_the_version(release: Path) -> None:
    with tarfile.open(release / IMAGE) as archive:

        def blob(digest: str) -> dict[str, Any]:
            member = archive.extractfile(f"blobs/sha256/{digest.removeprefix('sha256:')}")
            assert member is not None
            found: dict[str, Any] = json.loads(member.read())
            return found

        outer = archive.extractfile("index.json")
        assert outer is not None
        [index] = json.loads(outer.read())["manifests"]
        platforms = {one["platform"]["architecture"]: one["digest"] for one in blob(index["digest"])["manifests"]}
        assert set(platforms) == ARCHITECTURES
        assert {blob(blob(one)["config"]["digest"])["architecture"] for one in platforms.values()} == ARCHITECTURES
