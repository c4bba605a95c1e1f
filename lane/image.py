"""Container images without a registry: one layer, written as an OCI archive for `ctr images import`.

In: a static busybox. Out: a tar. No network is used.
Source: OCI image format (image-layout, manifest, configuration).
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from collections.abc import Sequence
from pathlib import Path

BUSYBOX = "cluster.lane/busybox:1"
PAUSE = "cluster.lane/pause:1"
APPLETS = ("sh", "sleep", "cat", "env", "ls", "wget", "true", "false", "stat", "mount", "date", "tr", "grep")


def write(archive: Path, reference: str, busybox: Path, command: Sequence[str]) -> None:
    """Write an archive of one image: busybox, links to its applets, and a command."""
    layer = _layer(busybox)
    configuration = _json(
        {
            "architecture": {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()],
            "os": "linux",
            "config": {"Env": ["PATH=/bin"], "Cmd": list(command)},
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": _descriptor("application/vnd.oci.image.config.v1+json", configuration),
            "layers": [_descriptor("application/vnd.oci.image.layer.v1.tar", layer)],
        }
    )
    named = _descriptor("application/vnd.oci.image.manifest.v1+json", manifest)
    named["annotations"] = {"io.containerd.image.name": reference}
    with tarfile.open(archive, "w") as out:
        _add(out, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        _add(out, "index.json", _json({"schemaVersion": 2, "manifests": [named]}))
        for blob in (configuration, manifest, layer):
            _add(out, "blobs/" + _digest(blob).replace(":", "/"), blob)


def _layer(busybox: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as out:
        for folder, mode in (("bin", 0o755), ("etc", 0o755), ("tmp", 0o1777)):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            out.addfile(entry)
        _add(out, "bin/busybox", busybox.read_bytes(), 0o755)
        for applet in APPLETS:
            entry = tarfile.TarInfo(f"bin/{applet}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
            out.addfile(entry)
    return buffer.getvalue()


def _add(out: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    out.addfile(entry, io.BytesIO(content))


def _descriptor(media_type: str, blob: bytes) -> dict[str, object]:
    return {"mediaType": media_type, "digest": _digest(blob), "size": len(blob)}


def _digest(blob: bytes) -> str:
    return "sha256:" + hashlib.sha256(blob).hexdigest()


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()
