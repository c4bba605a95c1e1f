"""Bills of materials: what is in the image, the wheel and the chart. Source: CycloneDX 1.5, JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from debian import Deb
from packaging.utils import canonicalize_name
from wheels import Wheel


def write(path: Path, subject: dict[str, object], components: Sequence[dict[str, object]]) -> None:
    """Write the bill of one artifact."""
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": subject},
        "components": list(components),
    }
    path.write_text(json.dumps(bill, indent=1) + "\n")


def subject(kind: str, version: str, sha256: str, name: str = "dra-driver") -> dict[str, object]:
    """Return the artifact that a bill is about; `kind` is one of CycloneDX's component types."""
    return {"type": kind, "name": name, "version": version, "hashes": _hashes(sha256)}


def of_deb(deb: Deb, architecture: str) -> dict[str, object]:
    """Return the component for one Debian package."""
    purl = f"pkg:deb/debian/{deb.name}@{deb.version}?arch={architecture}"
    return _library(deb.name, deb.version, purl) | {"hashes": _hashes(deb.sha256)}


def of_wheel(wheel: Wheel) -> dict[str, object]:
    """Return the component for one Python distribution."""
    return _library(wheel.name, wheel.version, f"pkg:pypi/{canonicalize_name(wheel.name)}@{wheel.version}")


def of_image(reference: str, version: str, manifest: str) -> dict[str, object]:
    """Return the component for the image that the chart runs; `manifest` is the digest of its index."""
    found: dict[str, object] = {"type": "container", "name": reference, "version": version}
    return found | {"hashes": _hashes(manifest.removeprefix("sha256:"))}


def _library(name: str, version: str, purl: str) -> dict[str, object]:
    return {"type": "library", "name": name, "version": version, "purl": purl}


def _hashes(sha256: str) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": sha256}]
