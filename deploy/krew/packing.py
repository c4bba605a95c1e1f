"""`kubectl dra` for krew: an archive with the wheel and a script that runs it, and the manifest that names them.

In: the wheel, an address. Out: kubectl-dra-VERSION.tar.gz and dra.krew.yaml. Source: krew's plugin manifests, v1alpha2.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from pathlib import Path

import oci
import yaml

SCRIPT = Path(__file__).resolve().with_name("kubectl-dra")
LICENSE = Path(__file__).resolve().parents[2] / "LICENSE"
_DESCRIPTION = """\
Shows what Kubernetes Dynamic Resource Allocation knows of GPUs: published
devices, claims and who holds what; explains why a claim or a pod waits;
judges selectors while they are written; tries allocation offline.
"""


def archive(output: Path, version: str, wheel: Path) -> Path:
    """Write the archive; the same wheel gives the same bytes."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as out:
        oci.add_file(out, "kubectl-dra", SCRIPT.read_bytes(), 0o755)
        oci.add_file(out, wheel.name, wheel.read_bytes())
        oci.add_file(out, "LICENSE", LICENSE.read_bytes())
    made = output / f"kubectl-dra-{version}.tar.gz"
    made.write_bytes(gzip.compress(packed.getvalue(), 9, mtime=0))
    return made


def manifest(output: Path, version: str, packed: Path, downloads: str, source: str) -> Path:
    """Write the manifest. Without `downloads` its address is the archive's name, for an installation from files."""
    platform = {
        "selector": {"matchExpressions": [{"key": "os", "operator": "In", "values": ["darwin", "linux"]}]},
        "uri": f"{downloads.rstrip('/')}/{packed.name}" if downloads else packed.name,
        "sha256": hashlib.sha256(packed.read_bytes()).hexdigest(),
        "bin": "kubectl-dra",
    }
    spec = {
        "version": f"v{version}",
        **({"homepage": source} if source else {}),
        "shortDescription": "Explain GPUs, claims and selectors of DRA",
        "description": _DESCRIPTION,
        "caveats": "Needs Python 3.11 to 3.14 with pipx, or uv.\n",
        "platforms": [platform],
    }
    head = {"apiVersion": "krew.googlecontainertools.github.com/v1alpha2", "kind": "Plugin"}
    made = output / "dra.krew.yaml"
    made.write_text(yaml.safe_dump({**head, "metadata": {"name": "dra"}, "spec": spec}, sort_keys=False))
    return made
