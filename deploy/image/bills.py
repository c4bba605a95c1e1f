"""Bills of materials: what is in the image, the wheel and the chart. Source: CycloneDX 1.5, JSON."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from debian import Deb
from packaging.utils import canonicalize_name
from wheels import Wheel

VENDORED = (
    Path(__file__).resolve().parents[2] / "dra_driver" / "tools" / "console" / "static" / "vendor" / "vendor.json"
)


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


def of_deb(deb: Deb, architecture: str, licenses: Sequence[str]) -> dict[str, object]:
    """Return the component for one Debian package, with the names of its licenses."""
    purl = f"pkg:deb/debian/{deb.name}@{deb.version}?arch={architecture}"
    named = [{"license": {"name": name}} for name in licenses]
    return _library(deb.name, deb.version, purl) | {"hashes": _hashes(deb.sha256), "licenses": named}


def of_wheel(wheel: Wheel) -> dict[str, object]:
    """Return the component for one Python distribution."""
    named = {"expression": wheel.license} if wheel.has_expression else {"license": {"name": wheel.license}}
    purl = f"pkg:pypi/{canonicalize_name(wheel.name)}@{wheel.version}"
    return _library(wheel.name, wheel.version, purl) | ({"licenses": [named]} if wheel.license else {})


def vendored() -> list[dict[str, object]]:
    """Return the components for the modules of npm that the package has a copy of."""
    found = []
    for module in json.loads(VENDORED.read_text())["packages"]:
        name, version = module["name"], module["version"]
        purl = f"pkg:npm/{quote(name, safe='/')}@{version}"
        licenses = [{"license": {"id": module["license"]}}]
        sha512 = base64.b64decode(module["integrity"].removeprefix("sha512-")).hex()
        hashes = [{"alg": "SHA-512", "content": sha512}]
        found.append(_library(name, version, purl) | {"hashes": hashes, "licenses": licenses})
    return found


def of_image(reference: str, version: str, manifest: str) -> dict[str, object]:
    """Return the component for the image that the chart runs; `manifest` is the digest of its index."""
    found: dict[str, object] = {"type": "container", "name": reference, "version": version}
    return found | {"hashes": _hashes(manifest.removeprefix("sha256:"))}


def _library(name: str, version: str, purl: str) -> dict[str, object]:
    return {"type": "library", "name": name, "version": version, "purl": purl}


def _hashes(sha256: str) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": sha256}]
