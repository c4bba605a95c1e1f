"""Sockets: chooses the paths on which the plugin listens, listens there, and frees the paths of dead processes.

A socket on which nobody listens looks like that of a dead process. So a socket is made under a hidden name, and gets
its own only when its process listens: no other instance, which sweeps, ever finds it without a listener.

A single instance has plain names. Two instances during an upgrade have names with their pods' UIDs, or derived short
names if a path would be longer than AF_UNIX allows. Any name works, because the kubelet asks each socket which plugin
it belongs to.
Source: unix(7), sun_path; file names as the Kubernetes kubelet plugin helper derives them; kubelet pluginwatcher (names
that begin with a dot are ignored).
"""

from __future__ import annotations

import base64
import errno
import hashlib
import os
import re
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from dra_driver.model.errors import NodeError
from dra_driver.model.limits import SOCKET_PATH_BYTES
from dra_driver.model.stamp import Stamp, stamp_of, stamp_of_status

T = TypeVar("T")

FOLDER_MODE = 0o750
SOCKET_MODE = 0o600
HIDDEN_SECONDS = 600.0  # a socket whose process has died between two system calls is removed after this time
_umask = threading.Lock()


@dataclass(frozen=True, slots=True)
class SocketPaths:
    """The paths on which one instance of the plugin listens."""

    registration: Path
    service: Path


def choose_paths(driver: str, registrar_dir: Path, data_dir: Path, pod_uid: str) -> SocketPaths:
    """Return both paths, with the most readable names that are short enough.

    Raises: NodeError("node.socket-path-too-long").
    """
    whole = _digest(f"{driver}\0{pod_uid}", 16)
    registration: tuple[str, ...]
    service: tuple[str, ...]
    if pod_uid:
        short = _digest(pod_uid, 8)
        registration = (f"{driver}-{pod_uid}-reg.sock", f"{driver}-{short}-reg.sock", f"dra-{whole}-reg.sock")
        service = (f"dra-{pod_uid}.sock", f"dra-{short}.sock")
    else:
        registration = (f"{driver}-reg.sock", f"dra-{whole}-reg.sock")
        service = ("dra.sock",)
    return SocketPaths(_fitting(registrar_dir, registration), _fitting(data_dir, service))


def set_aside(path: Path) -> Path:
    """Return a path beside a registration socket at which the kubelet ignores the socket."""
    return path.with_name(f".{path.name}.aside")


def make_folder(path: Path) -> None:
    """Make a folder for sockets that other users can't enter; an existing folder keeps its mode.

    Raises: NodeError("node.folder").
    """
    try:
        path.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    except OSError as exc:
        raise NodeError("folder", f"folder {path} can't be made: {exc.strerror}") from exc


def free_path(path: Path) -> None:
    """Make sure that there is no file at `path`; the socket of a dead process is removed.

    Raises: NodeError("node.socket-in-use") if a process answers there, and "node.not-a-socket" for any other file.
    """
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise NodeError("not-a-socket", f"{path} already exists and is not a socket")
    except FileNotFoundError:
        return
    if not is_refused(path):
        raise NodeError(
            "socket-in-use",
            f"another process answers at {path}",
            hint="set --pod-uid so that two instances can overlap, or stop the other one",
        )
    path.unlink(missing_ok=True)


def sweep(driver: str, paths: SocketPaths) -> int:
    """Remove the sockets that dead instances of this driver left, and return how many.

    Each such socket would delay the next registration by seconds. A hidden one, which delays nothing, may belong to an
    instance that is just about to listen: only an old one is removed.
    """
    uid = r"[0-9A-Za-z_-]{11,36}"
    count = 0
    for folder, name in (
        (paths.registration.parent, rf"{re.escape(driver)}(-{uid})?-reg\.sock"),
        (paths.service.parent, rf"dra(-{uid})?\.sock"),
    ):
        for path in _sockets(folder):
            if not re.fullmatch(rf"{name}|\.{name}\.(new|aside)", path.name):
                continue
            made = identity(path)
            if made is None or (path.name.endswith(".new") and time.time() - made.mtime_ns / 1e9 < HIDDEN_SECONDS):
                continue
            if is_refused(path) and identity(path) == made:  # no other instance has replaced it meanwhile
                path.unlink(missing_ok=True)
                count += 1
    return count


def identity(path: Path) -> Stamp | None:
    """Return a value that distinguishes this file from another one that replaces it; None if there is no file."""
    return stamp_of(path, follows_links=False)


def is_refused(path: Path) -> bool:
    """Return whether nothing listens at a path, so that a connection to it is refused.

    A full queue or a missing permission means that something listens.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        try:
            return probe.connect_ex(os.fspath(path)) == errno.ECONNREFUSED
        except OSError:  # the path is too long to connect to
            return False


def bind_privately(path: Path, bind: Callable[[], T]) -> T:
    """Make the socket at `path` by calling `bind`, so that no other user can ever open it.

    This sets the umask of the whole process for a moment: files that other threads make meanwhile are closed to other
    users too.
    """
    with _private_umask():
        result = bind()
    path.chmod(SOCKET_MODE)
    return result


def open_socket(path: Path, listen: Callable[[Path], None]) -> Stamp:
    """Open a socket at `path` by calling `listen` with a hidden path, on which it has to bind and to listen.

    Return the identity of the socket, by which `is_ours` and `remove` recognize it.

    Raises: NodeError("node.socket"), and those of `free_path`.
    """
    free_path(path)
    hidden = hidden_path(path)
    free_path(hidden)
    try:
        bind_privately(hidden, lambda: listen(hidden))
        made = stamp_of_status(hidden.lstat())
        hidden.rename(path)
    except OSError as exc:
        raise NodeError("socket", f"can't listen on {path}: {exc.strerror}") from exc
    return made


def hidden_path(path: Path) -> Path:
    """Return the path beside a socket's at which the socket is made; it is short enough wherever the other one is."""
    hidden = path.with_name(f".{path.name}.new")
    return hidden if _is_short(hidden) else path.with_name(f".{_digest(path.name, 5)}")


def is_ours(path: Path, made: Stamp | None) -> bool:
    """Return whether the socket at `path` is the one that `open_socket` made."""
    return made is not None and identity(path) == made


def remove(path: Path, made: Stamp | None) -> None:
    """Remove the socket that `open_socket` made at `path`, but not one that has replaced it."""
    if is_ours(path, made):
        path.unlink(missing_ok=True)


@contextmanager
def _private_umask() -> Iterator[None]:
    with _umask:
        before = os.umask(0o077)
        try:
            yield
        finally:
            os.umask(before)


def _fitting(folder: Path, names: Iterable[str]) -> Path:
    paths = [folder / name for name in names]
    for path in paths:
        if _is_short(path):
            return path
    raise NodeError(
        "socket-path-too-long",
        f"even {paths[-1]} is longer than the {SOCKET_PATH_BYTES} bytes that a socket path may have",
        hint="use shorter --kubelet-registrar-directory-path and --kubelet-plugins-directory-path",
    )


def _is_short(path: Path) -> bool:
    return len(os.fsencode(path)) <= SOCKET_PATH_BYTES


def _digest(text: str, size: int) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()[:size]).rstrip(b"=").decode()


def _sockets(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if path.is_socket()]
    except FileNotFoundError:
        return []
