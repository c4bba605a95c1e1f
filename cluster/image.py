"""Container images without a registry: one layer, written as an OCI archive for `ctr images import`.

In: a static busybox. Out: a tar. No network is used.
Source: OCI image format (image-layout, manifest, configuration).
"""

from __future__ import annotations

import io
import platform
import tarfile
from collections.abc import Sequence
from pathlib import Path

from deploy.image.oci import add_file, canonical_json, descriptor, digest

BUSYBOX = "cluster.lane/busybox:1"
PAUSE = "cluster.lane/pause:1"
APPLETS = ("sh", "sleep", "cat", "env", "ls", "wget", "true", "false", "stat", "mount", "date", "tr", "grep")


def write(archive: Path, reference: str, busybox: Path, command: Sequence[str]) -> None:
    """Write an archive of one image: busybox, links to its applets, and a command."""
    layer = _layer(busybox)
    configuration = canonical_json(
        {
            "architecture": {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()],
            "os": "linux",
            "config": {"Env": ["PATH=/bin"], "Cmd": list(command)},
            "rootfs": {"type": "layers", "diff_ids": [digest(layer)]},
        }
    )
    manifest = canonical_json(
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": descriptor("application/vnd.oci.image.config.v1+json", configuration),
            "layers": [descriptor("application/vnd.oci.image.layer.v1.tar", layer)],
        }
    )
    named = descriptor("application/vnd.oci.image.manifest.v1+json", manifest)
    named["annotations"] = {"io.containerd.image.name": reference}
    with tarfile.open(archive, "w") as out:
        add_file(out, "oci-layout", canonical_json({"imageLayoutVersion": "1.0.0"}))
        add_file(out, "index.json", canonical_json({"schemaVersion": 2, "manifests": [named]}))
        for blob in (configuration, manifest, layer):
            add_file(out, "blobs/" + digest(blob).replace(":", "/"), blob)


def _layer(busybox: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as out:
        for folder, mode in (("bin", 0o755), ("etc", 0o755), ("tmp", 0o1777)):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            out.addfile(entry)
        add_file(out, "bin/busybox", busybox.read_bytes(), 0o755)
        for applet in APPLETS:
            entry = tarfile.TarInfo(f"bin/{applet}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
            out.addfile(entry)
    return buffer.getvalue()
