"""CDI files: what a claim's devices add to containers comes in, whole files go out, and no reader sees half a file.

A document is deterministic to the byte, at the lowest version that covers the fields used: older runtimes refuse a
version that they don't know (podman 4.3 stops at 0.5.0), newer ones a field that came after the version given. What
every device of a file needs is written once, in the document's own containerEdits. Annotations (0.6.0), uid and mount
types are never written.

A file is written under a hidden name that no runtime reads (they read .json and .yaml only), synced, and renamed. A
crash in between leaves the hidden file behind; it is removed by the sweep at startup or overwritten by the next write
of the same file. The folder is shared with other drivers: files that no caller named are never touched.
Source: CDI specification, "Released versions", "JSON Definition", "Kind" and "CDI Devices"; its reference library: spec
files end in .json or .yaml, last rename wins.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dra_driver.base.errors import PrepareError, Retry
from dra_driver.base.wire import CdiWire, Wire
from dra_driver.hardware.facts import DeviceNode, Edits, Hook, Mount

# Names of CDI files, kinds and devices.

CLASS = "claim"
SUFFIX = ".json"


def vendor(driver: str) -> str:
    """Return the CDI vendor of a DRA driver. The prefix keeps it apart from the vendor's own static specifications."""
    return f"k8s.{driver}"


def kind(driver: str) -> str:
    """Return the CDI kind of all devices that a DRA driver prepares."""
    return f"{vendor(driver)}/{CLASS}"


def claim_file(driver: str, uid: str) -> str:
    """Return the file name of one claim.

    >>> claim_file("gpu.nvidia.com", "7f3a")
    'k8s.gpu.nvidia.com-claim_7f3a.json'
    """
    return f"{vendor(driver)}-{CLASS}_{uid}{SUFFIX}"


def claim_uid_of(driver: str, file_name: str) -> str | None:
    """Return the claim UID that a file name holds, or None for a file that this driver did not write.

    >>> claim_uid_of("gpu.nvidia.com", "k8s.gpu.nvidia.com-claim_7f3a.json")
    '7f3a'
    >>> claim_uid_of("gpu.nvidia.com", "nvidia.json")
    """
    prefix = f"{vendor(driver)}-{CLASS}_"
    if not (file_name.startswith(prefix) and file_name.endswith(SUFFIX)):
        return None
    return file_name[len(prefix) : -len(SUFFIX)] or None


def device_name(uid: str, device: str, share_id: str | None = None) -> str:
    """Return the name of one prepared device inside its claim's file; a share of a device also carries its share id.

    >>> device_name("7f3a", "gpu-0000-65-00-0")
    '7f3a-gpu-0000-65-00-0'
    """
    return f"{uid}-{device}-{share_id}" if share_id else f"{uid}-{device}"


def device_id(driver: str, uid: str, device: str, share_id: str | None = None) -> str:
    """Return the fully qualified CDI device id that the kubelet hands to the runtime.

    >>> device_id("gpu.nvidia.com", "7f3a", "gpu-0000-65-00-0")
    'k8s.gpu.nvidia.com/claim=7f3a-gpu-0000-65-00-0'
    """
    return f"{kind(driver)}={device_name(uid, device, share_id)}"


# Documents: edits come in, bytes go out.

VENDOR_CHARS = 253  # the limit of a DNS subdomain
CLASS_CHARS = 63  # the limit of a kind's name segment
_NAME = re.compile(r"[A-Za-z](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_DEVICE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._:-]*[A-Za-z0-9])?")
_LOWEST = "0.3.0"  # the lowest CDI version that is ever written
_DIGIT_FIRST = "0.5.0"  # device names that start with a digit, which a claim's UID does in 10 of 16 cases


def render(kind: str, devices: Mapping[str, Edits], common: Edits) -> bytes:
    """Return the bytes of a CDI document of `kind` with the given devices, in name order; equal input, equal bytes.

    `devices` maps CDI device names to what each adds; `common` is what every device adds.
    Raises: PrepareError("prepare.cdi-invalid") for a name that CDI does not accept, for no devices at all, or for a
    device without edits (runtimes refuse such a file).
    """
    versions = [_lowest_of_kind(kind), _lowest_of_edits(common)]
    if not devices:
        raise _invalid(f"CDI document of kind {kind!r} has no device; at least one is required")
    entries = []
    for name, edits in sorted(devices.items()):
        _check_device(name, edits)
        entries.append({"name": name, "containerEdits": _edits(edits)})
        versions += _lowest_of_edits(edits), _DIGIT_FIRST if name[0].isdigit() else _LOWEST
    document = {
        "cdiVersion": max(versions),
        "kind": kind,
        "devices": entries,
        "containerEdits": _edits(common),
    }
    return f"{json.dumps(document, separators=(',', ':'), ensure_ascii=False)}\n".encode()


def _lowest_of_kind(kind: str) -> str:
    """Return the lowest CDI version that allows a kind, after checking it. Raises: PrepareError.

    Source: CDI specification, "Released versions": 0.6.0 dots in the class.
    """
    vendor, _, class_ = kind.partition("/")
    if len(vendor) > VENDOR_CHARS or not _NAME.fullmatch(vendor):
        raise _invalid(f"CDI kind {kind!r}: the vendor must start with a letter and consist of letters, digits and ._-")
    if len(class_) > CLASS_CHARS or not _NAME.fullmatch(class_):
        raise _invalid(f"CDI kind {kind!r}: the class must start with a letter and consist of letters, digits and ._-")
    return "0.6.0" if "." in class_ else _LOWEST


def _check_device(name: str, edits: Edits) -> None:
    if not _DEVICE.fullmatch(name):
        raise _invalid(
            f"CDI device name {name!r} must start and end with a letter or digit and consist of those and ._:-"
        )
    if not edits:
        raise _invalid(f"CDI device {name!r} has no edits; runtimes refuse a device that changes nothing")


def _invalid(message: str) -> PrepareError:
    return PrepareError("cdi-invalid", message)


def _lowest_of_edits(edits: Edits) -> str:
    """Return the lowest CDI version that has the fields of these edits.

    Source: CDI specification, "Released versions": 0.5.0 hostPath of device nodes, 0.7.0 additionalGids.
    """
    if _gids(edits):
        return "0.7.0"
    return "0.5.0" if any(node.host_path for node in edits.device_nodes) else _LOWEST


def _edits(edits: Edits) -> Wire:
    wire: Wire = {}
    if edits.env:
        wire["env"] = list(edits.env)
    if edits.device_nodes:
        wire["deviceNodes"] = [_node(node) for node in edits.device_nodes]
    if edits.mounts:
        wire["mounts"] = [_mount(mount) for mount in edits.mounts]
    if edits.hooks:
        wire["hooks"] = [_hook(hook) for hook in edits.hooks]
    if gids := _gids(edits):
        wire["additionalGids"] = gids
    return wire


def _gids(edits: Edits) -> list[int]:
    return sorted({gid for gid in edits.additional_gids if gid})  # runtimes ignore group 0


def _node(node: DeviceNode) -> Wire:
    wire: Wire = {"path": node.path}
    if node.host_path:
        wire["hostPath"] = node.host_path
    wire |= {"type": node.type, "major": node.major, "minor": node.minor}
    if node.file_mode is not None:
        wire["fileMode"] = node.file_mode
    wire["permissions"] = node.permissions
    if node.gid:
        wire["gid"] = node.gid
    return wire


def _mount(mount: Mount) -> Wire:
    return {"hostPath": mount.host_path, "containerPath": mount.container_path, "options": list(mount.options)}


def _hook(hook: Hook) -> Wire:
    wire: Wire = {"hookName": hook.name, "path": hook.path, "args": list(hook.args)}
    if hook.env:
        wire["env"] = list(hook.env)
    return wire


# Records: the part of a claim's document that only this driver reads, kept in a file beside it.

PREFIX = "DRA_DRIVER_"


def record_text(entries: Mapping[str, Sequence[str]]) -> bytes:
    """Return the bytes of records, given by device name; empty if there are none."""
    records = {name: list(own) for name, own in sorted(entries.items()) if own}
    return f"{json.dumps(records, separators=(',', ':'), ensure_ascii=False)}\n".encode() if records else b""


def join(document: CdiWire, records: object) -> CdiWire:
    """Return a document with its devices' records; entries that are not records are left out."""
    known: Mapping[Any, Any] = records if isinstance(records, Mapping) else {}
    devices = []
    for device in document.get("devices") or ():
        own = known.get(device.get("name")) if isinstance(device, Mapping) else None
        entries = (
            [one for one in own if isinstance(one, str) and one.startswith(PREFIX)] if isinstance(own, list) else []
        )
        if entries:
            edits = device.get("containerEdits") or {}
            device = {**device, "containerEdits": {**edits, "env": [*(edits.get("env") or ()), *entries]}}  # noqa: PLW2901
        devices.append(device)
    return {**document, "devices": devices} if known else document


# The store: the folder of CDI files.

FILE_MODE = 0o644  # runtimes that run without root read the files too
FOLDER_MODE = 0o755
RECORD_MODE = 0o600
_UNFINISHED = ".unfinished"
_RECORD = ".record"  # a file beside the CDI file, with the part of its document that only this driver reads
_HINTS = {
    errno.EROFS: "mount the CDI folder writable, or set --cdi-root",
    errno.ENOSPC: "free space on the file system of the CDI folder",
    errno.EDQUOT: "free space on the file system of the CDI folder",
    errno.EACCES: "the agent needs write access to the CDI folder",
    errno.EPERM: "the agent needs write access to the CDI folder",
    errno.ENOTDIR: "the CDI folder, or one above it, is a file; set --cdi-root",
    errno.ENAMETOOLONG: "set a shorter --cdi-root",
}
_LACKING = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})  # what the process or the node lacks for a moment


class CdiStore:
    """The CDI folder `root`, usually /var/run/cdi. It is created when missing (it vanishes at every reboot).

    Any number of threads and processes may use one folder.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root, self._root = Path(root), os.fspath(root)

    def write(self, file_name: str, content: bytes, record: bytes = b"") -> bool:
        """Make the file hold `content` (from `render`), durably, and return whether it changed. Idempotent.

        `record` is what only this driver reads (from `record_text`), for a file beside it.

        Raises: PrepareError("prepare.cdi-write", LATER) when the folder is read-only, full or can't be created;
        PrepareError("prepare.cdi-file-name") for a name that is hidden, has a slash or does not end in .json.
        """
        path, record_path = self._path(file_name), self._hidden(file_name, _RECORD)
        try:
            if _content(path) == content and _content(record_path) == record:
                return False
            self._replace(path, self._hidden(file_name, _UNFINISHED), content, FILE_MODE)
            if record:  # written after its document, so that no sweep takes it for a lone record
                self._replace(record_path, f"{record_path}{_UNFINISHED}", record, RECORD_MODE)
            else:
                _unlink(record_path)
            self._sync_folder()
        except OSError as exc:
            raise self._fault("cdi-write", f"CDI file {file_name} can't be written to {self.root}", exc) from exc
        return True

    def remove(self, file_name: str) -> bool:
        """Remove the file and what a crash left of it, and return whether the file was there. Idempotent.

        Raises: PrepareError("prepare.cdi-remove", LATER), PrepareError("prepare.cdi-file-name").
        """
        path, record_path = self._path(file_name), self._hidden(file_name, _RECORD)
        try:
            _unlink(self._hidden(file_name, _UNFINISHED))
            _unlink(f"{record_path}{_UNFINISHED}")
            was_there = _unlink(path)
            _unlink(record_path)
        except OSError as exc:
            raise self._fault("cdi-remove", f"CDI file {file_name} can't be removed from {self.root}", exc) from exc
        return was_there

    def list(self, prefix: str = "") -> tuple[str, ...]:
        """Return the names of the specification files that begin with `prefix`, sorted; a missing folder holds none.

        Raises: PrepareError("prepare.cdi-read", LATER).
        """
        return tuple(n for n in self._names() if n.startswith(prefix) and n.endswith(SUFFIX) and not n.startswith("."))

    def read(self, file_name: str) -> CdiWire | None:
        """Return the document in a file with its records, or None when the file is missing or holds no JSON object.

        Raises: PrepareError("prepare.cdi-read", LATER) if this process can't open a file now, whatever is in it.
        """
        try:
            document = _json(self._path(file_name))
            return join(document, _json(self._hidden(file_name, _RECORD))) if isinstance(document, dict) else None
        except OSError as exc:
            raise self._fault("cdi-read", f"CDI file {file_name} can't be read in {self.root}", exc) from exc

    def sweep(self, prefix: str) -> int:
        """Remove the unfinished files and lone records with `prefix` that crashed writers left; return their number.

        The file of a writer that is still at work is locked and left alone.
        Raises: PrepareError("prepare.cdi-remove", LATER), PrepareError("prepare.cdi-read", LATER).
        """
        swept = 0
        for name in self._names():
            try:
                if name.startswith(f".{prefix}"):
                    swept += self._sweep(name)
            except (FileNotFoundError, BlockingIOError):
                continue
            except OSError as exc:
                raise self._fault("cdi-remove", f"CDI file {name} can't be removed from {self.root}", exc) from exc
        return swept

    def _sweep(self, name: str) -> bool:
        """Remove a lone record or an unfinished file; return whether it was one. Raises: OSError."""
        path = self.root / name
        if name.endswith(_UNFINISHED):
            with _locked(path):
                path.unlink()
            return True
        if name.endswith(_RECORD) and not os.path.lexists(self.root / name[1:].removesuffix(_RECORD)):
            return _unlink(str(path))
        return False

    def _names(self) -> tuple[str, ...]:
        """Return the names of all files, sorted. Raises: PrepareError("prepare.cdi-read", LATER)."""
        try:
            return tuple(sorted(os.listdir(self.root)))  # noqa: PTH208 - names alone
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except OSError as exc:
            raise self._fault("cdi-read", f"the CDI folder {self.root} can't be read", exc) from exc

    # Paths are strings from here on, because pathlib is slower and every call of the kubelet comes here.

    def _path(self, file_name: str) -> str:
        if "/" in file_name or "\0" in file_name or file_name.startswith(".") or not file_name.endswith(SUFFIX):
            raise PrepareError(
                "cdi-file-name",
                f"{file_name!r} can't name a CDI file: it must end in {SUFFIX}, have no slash and not start with a dot",
            )
        return f"{self._root}/{file_name}"

    def _hidden(self, file_name: str, ending: str) -> str:
        """Return the path of a hidden file beside a CDI file: its record, or the file that is being written."""
        return f"{self._root}/.{file_name}{ending}"

    def _replace(self, path: str, unfinished: str, content: bytes, mode: int) -> None:
        """Replace a file by a new one, whose name is durable once the folder has been synced."""
        fd = self._open_unfinished(unfinished)
        try:
            try:
                os.ftruncate(fd, 0)
                _write_all(fd, content)
                os.fchmod(fd, mode)
                os.fsync(fd)
                os.rename(unfinished, path)  # noqa: PTH104
            except OSError:
                with contextlib.suppress(OSError):
                    _unlink(unfinished)
                raise
        finally:
            os.close(fd)

    def _open_unfinished(self, unfinished: str) -> int:
        """Open the hidden file and return it locked; retry when another writer or a sweep replaced it in between."""
        while True:
            try:
                fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:
                self.root.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
                continue
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
                if os.fstat(fd).st_ino == os.stat(unfinished).st_ino:  # noqa: PTH116
                    return fd
            except FileNotFoundError:
                pass  # it was renamed or swept before we held the lock: start over
            except OSError:
                os.close(fd)
                raise
            os.close(fd)

    def _sync_folder(self) -> None:
        fd = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def _fault(self, code: str, message: str, exc: OSError) -> PrepareError:
        hint = _HINTS.get(exc.errno or 0, "")
        return PrepareError(code, f"{message}: {exc.strerror or exc}", hint=hint, retry=Retry.LATER)


def _content(path: str) -> bytes:
    """Return a file's content, or b"" if it is missing or can't be read, so that it is written again.

    Raises: OSError if that says nothing about the file.
    """
    try:
        return Path(path).read_bytes()
    except OSError as exc:
        if exc.errno in _LACKING:
            raise
        return b""


def _json(path: str) -> object:
    try:
        return json.loads(_content(path))
    except ValueError:
        return None


def _unlink(path: str) -> bool:
    try:
        os.unlink(path)  # noqa: PTH108
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)


def _write_all(fd: int, content: bytes) -> None:
    written = os.write(fd, content)
    while written < len(content):
        written += os.write(fd, memoryview(content)[written:])
