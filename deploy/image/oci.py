"""Folders as an OCI image, written without a container engine; and the digest of a tree, however it is packed.

In: a folder for each architecture, a name, a configuration. Out: an OCI layout in a tar file. The same trees give the
same bytes. Source: OCI image format 1.1 (image-layout, index, manifest, configuration, layer).
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path

_CONFIGURATION = "application/vnd.oci.image.config.v1+json"
_INDEX = "application/vnd.oci.image.index.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"


def write(
    archive: Path, trees: Mapping[str, Path], reference: str, configuration: Mapping[str, object], *, created: str = ""
) -> str:
    """Write the archive of an image with a tree for each architecture; return the digest of its index.

    `created` is the time (RFC 3339) that the image has; without it, it has none.
    The image's name refers to one index, from which a runtime takes the manifest for its own architecture.
    """
    blobs: list[bytes] = []
    manifests = []
    for architecture, tree in trees.items():
        manifest, parts = _manifest(architecture, tree, configuration, created)
        blobs += [manifest, *parts]
        manifests.append(descriptor(_MANIFEST, manifest) | {"platform": {"architecture": architecture, "os": "linux"}})
    index = canonical_json({"schemaVersion": 2, "mediaType": _INDEX, "manifests": manifests})
    tag = reference.rpartition(":")[2]
    named = descriptor(_INDEX, index) | {
        "annotations": {"io.containerd.image.name": reference, "org.opencontainers.image.ref.name": tag}
    }
    with tarfile.open(archive, "w") as out:
        add_file(out, "oci-layout", canonical_json({"imageLayoutVersion": "1.0.0"}))
        add_file(out, "index.json", canonical_json({"schemaVersion": 2, "mediaType": _INDEX, "manifests": [named]}))
        for blob in (index, *blobs):
            add_file(out, "blobs/" + digest(blob).replace(":", "/"), blob)
    return digest(index)


def _manifest(
    architecture: str, tree: Path, configuration: Mapping[str, object], created: str
) -> tuple[bytes, tuple[bytes, bytes]]:
    """Return the manifest of a tree, with its configuration and its layer."""
    layer = _layer(tree)
    packed = gzip.compress(layer, 6, mtime=0)
    image = canonical_json(
        {
            "architecture": architecture,
            "os": "linux",
            "config": configuration,
            "rootfs": {"type": "layers", "diff_ids": [digest(layer)]},
            **({"created": created} if created else {}),
        }
    )
    manifest = canonical_json(
        {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": descriptor(_CONFIGURATION, image),
            "layers": [descriptor(_LAYER, packed)],
        }
    )
    return manifest, (image, packed)


def tree_digest(tree: Path) -> str:
    """Return the digest of a folder's content: paths, kinds, modes, links and bytes, but no owner and no time."""
    entries = []
    for path in _walk(tree):
        name, mode = path.relative_to(tree).as_posix(), path.lstat().st_mode & 0o7777
        if path.is_symlink():
            entries.append((name, "link", 0, str(path.readlink())))
        elif path.is_dir():
            entries.append((name, "folder", mode, ""))
        else:
            entries.append((name, "file", mode, hashlib.sha256(path.read_bytes()).hexdigest()))
    return entries_digest(entries)


def layers_digest(layers: Iterable[tarfile.TarFile]) -> str:
    """Return the same digest for the content of an image's layers, later layers over earlier ones."""
    entries: dict[str, tuple[str, str, int, str]] = {}
    for layer in layers:
        for member in layer:
            name = member.name.removeprefix("./").rstrip("/")
            if member.issym():
                entries[name] = (name, "link", 0, member.linkname)
            elif member.isdir():
                entries[name] = (name, "folder", member.mode & 0o7777, "")
            elif member.islnk():
                entries[name] = (name, *entries[member.linkname.removeprefix("./")][1:])
            else:
                content = layer.extractfile(member)
                assert content is not None, name  # noqa: S101
                entries[name] = (name, "file", member.mode & 0o7777, hashlib.sha256(content.read()).hexdigest())
    return entries_digest(entry for name, entry in entries.items() if name not in {"", "."})


def entries_digest(entries: Iterable[tuple[str, str, int, str]]) -> str:
    """Return the digest of (path, kind, mode, content) entries, whatever their order."""
    return digest(canonical_json(sorted(entries)))


def _layer(tree: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as out:
        for path in _walk(tree):
            entry = tarfile.TarInfo(path.relative_to(tree).as_posix())
            entry.mode = path.lstat().st_mode & 0o7777
            if path.is_symlink():
                entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, str(path.readlink()), 0o777
                out.addfile(entry)
            elif path.is_dir():
                entry.type = tarfile.DIRTYPE
                out.addfile(entry)
            else:
                content = path.read_bytes()
                entry.size = len(content)
                out.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def _walk(tree: Path) -> list[Path]:
    return sorted(tree.rglob("*"))


def add_file(out: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    """Add a file to an archive, owned by root and without a time."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    out.addfile(entry, io.BytesIO(content))


def descriptor(media_type: str, blob: bytes) -> dict[str, object]:
    """Return the description of a blob as a manifest or an index contains it."""
    return {"mediaType": media_type, "digest": digest(blob), "size": len(blob)}


def digest(blob: bytes) -> str:
    """Return the digest of a blob, with its algorithm."""
    return "sha256:" + hashlib.sha256(blob).hexdigest()


def canonical_json(value: object) -> bytes:
    """Return a value as JSON, the same bytes for the same value."""
    return json.dumps(value, sort_keys=True).encode()
