"""The manifests and layers of an image that is an archive."""

from __future__ import annotations

import importlib.util
import json
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

IMAGE, BUILT = ROOT / "deploy" / "image", ROOT / "build" / "image"


def load(name: str):
    spec = importlib.util.spec_from_file_location(f"image_{name}", IMAGE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[f"image_{name}"] = module
    spec.loader.exec_module(module)
    return module


oci, contents = load("oci"), load("contents")


def blobs(scratch: Path) -> Callable[[str], Path]:
    return lambda digest: scratch / "blobs" / digest.replace(":", "/")


def manifests(archive: Path, scratch: Path) -> dict[str, dict]:
    """Unpack an archive; return its manifests by architecture."""
    with tarfile.open(archive) as found:
        found.extraction_filter = getattr(tarfile, "data_filter", None)  # the first releases of 3.11 have none
        found.extractall(scratch)
    blob = blobs(scratch)
    (named,) = json.loads((scratch / "index.json").read_text())["manifests"]
    top = json.loads(blob(named["digest"]).read_text())
    if "layers" in top:
        return {json.loads(blob(top["config"]["digest"]).read_text())["architecture"]: top}
    inner = {one["platform"]["architecture"]: json.loads(blob(one["digest"]).read_text()) for one in top["manifests"]}
    for architecture, manifest in inner.items():
        assert json.loads(blob(manifest["config"]["digest"]).read_text())["architecture"] == architecture
    return inner


def layers(archive: Path, scratch: Path, architecture: str = "amd64") -> list[Path]:
    return [blobs(scratch)(layer["digest"]) for layer in manifests(archive, scratch)[architecture]["layers"]]
