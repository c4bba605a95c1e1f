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
import fcntl
import hashlib
import logging
import os
import re
import socket
import stat
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from dra_driver.base.errors import SOCKET_PATH_BYTES, DriverError, NodeError
from dra_driver.base.machine import Stamp, stamp_of, stamp_of_status
from dra_driver.base.telemetry.logs import PartThread, fields

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


# Folder use: the agents that use the plugin's folder.

log = logging.getLogger(__name__)

LOCK = "tenants"
FOLDER_ID = "folder-id"
# The files that an agent makes again when it starts.
_OWN = (
    *(f"ledger.db{ending}" for ending in ("", "-wal", "-shm", ".open", ".unprepared")),
    *(f"state.db{ending}" for ending in ("", "-journal", ".open", ".damaged")),
    *("health.db", "health.db-journal", "health.db.damaged", "health-forget", "cordons.lock"),
    *(FOLDER_ID, "locks", "role.lock", "simulated-mig.lock", "simulated-modes.lock"),
)
_OWN_IF_EMPTY = ("simulated-mig.json", "simulated-modes.json", "simulated-resets.json")


def folder_id(folder: Path) -> str:
    """Return the id of a plugin's folder, which is the same for all its agents and for no other folder.

    Raises: NodeError("node.lock-file").
    """
    path, mine = folder / FOLDER_ID, folder / f".{FOLDER_ID}.{os.getpid()}"
    try:
        if not path.exists():
            mine.write_text(f"{uuid.uuid4()}\n", encoding="ascii")
            with suppress(FileExistsError):  # another agent was faster
                os.link(mine, path)
            mine.unlink()
        return path.read_text(encoding="ascii").strip()[:36]
    except (OSError, ValueError) as exc:
        raise NodeError("lock-file", f"{path} can't be read: {exc}") from exc


class FolderUse:
    """One agent's use of `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._fd: int | None = None

    def enter(self) -> None:
        """Make the folder if it is missing, and hold the shared lock. Raises: NodeError."""
        while self._fd is None:
            try:
                make_folder(self._folder)
                fd = os.open(self._folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:  # the last agent has just removed the folder
                continue
            except NodeError as error:  # the last agent may have removed the folder while it was being made
                if isinstance(error.__cause__, FileExistsError) and not self._folder.is_file():
                    continue
                raise
            except OSError as exc:
                raise NodeError("lock-file", f"{self._folder / LOCK} can't be opened: {exc.strerror}") from exc
            fcntl.flock(fd, fcntl.LOCK_SH)
            if self._is_current(fd):
                self._fd = fd
            else:
                os.close(fd)

    def leave(self, *, is_needed: bool) -> None:
        """Release the lock; remove the folder unless something in it is needed or another agent uses it."""
        if self._fd is None:
            return
        fd, self._fd = self._fd, None
        try:
            if not is_needed and self._is_last(fd):
                for name in (*_OWN, *filter(self._is_empty, _OWN_IF_EMPTY), LOCK):
                    (self._folder / name).unlink(missing_ok=True)
                with suppress(OSError):  # there are other files in the folder
                    self._folder.rmdir()
        except OSError as exc:
            log.warning("folder not removed", extra=fields(err=str(exc)))
        finally:
            os.close(fd)

    def _is_last(self, fd: int) -> bool:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        # An agent of a version without this lock file holds no lock, but its socket answers.
        return self._is_current(fd) and all(is_refused(path) for path in self._folder.glob("*.sock"))

    def _is_empty(self, name: str) -> bool:
        try:
            return (self._folder / name).stat().st_size == 0
        except FileNotFoundError:
            return False

    def _is_current(self, fd: int) -> bool:
        try:
            return (self._folder / LOCK).stat().st_ino == os.fstat(fd).st_ino
        except FileNotFoundError:
            return False


# Node role: of several instances on a node, exactly one has the role; it publishes slices and removes leftovers.

POLL_SECONDS = 0.2  # between two attempts to get the role while another instance has it


class RoleListener(Protocol):
    """Is called, in the role's own thread, when this instance gets the role or loses it."""

    def role_gained(self) -> None:
        """Begin what only the instance with the role does. Any error means that this instance has to end."""

    def role_lost(self) -> None:
        """End what only the instance with the role does; another one takes over after that."""


class NodeRole:
    """The role, which belongs to the instance that has locked the file `path`.

    If its work could not be begun, the role is kept, with `failure` set, until `stop`: the instance has to end.
    """

    def __init__(self, path: str | os.PathLike[str], listener: RoleListener) -> None:
        self._path, self._listener = Path(path), listener
        self._stop = threading.Event()
        self._thread: PartThread | None = None
        self.is_held = self.has_begun = False  # has_begun: whether the listener has begun its work
        self.has_asked = False  # whether it is known if this instance has the role
        self.failure: Exception | None = None

    def start(self) -> None:
        """Start trying to get the role. Raises: NodeError("node.role-file", "node.thread")."""
        fd = self._open()
        thread = PartThread("role", partial(self._run, fd))
        try:
            thread.start()
        except DriverError:
            os.close(fd)
            raise
        self._thread = thread

    def stop(self, timeout_s: float = 10.0) -> None:
        """Release the role. The listener is called first; only then can another instance take the role."""
        self._stop.set()
        if self._thread is not None:
            self._thread.release()
            self._thread.join(timeout_s)

    def _run(self, fd: int, thread: PartThread) -> None:
        try:
            while not _try_lock(fd):
                self.has_asked = True
                if self._stop.wait(POLL_SECONDS):
                    return
            self.is_held = self.has_asked = True
            log.info("role gained", extra=fields(role=self._path.name, pid=os.getpid()))
            with thread.turn():
                self._begin_work()
            self._stop.wait()
            self._end_work()
            self.is_held = self.has_begun = False
            log.info("role given up", extra=fields(role=self._path.name))
        finally:
            os.close(fd)

    def _open(self) -> int:
        try:
            self._path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as exc:
            raise NodeError("role-file", f"role file {self._path} can't be opened: {exc.strerror}") from exc

    def _begin_work(self) -> None:
        try:
            self._listener.role_gained()
            self.has_begun = True
        except Exception as error:  # noqa: BLE001 - reported by whoever ends this instance
            self.failure = error

    def _end_work(self) -> None:
        try:
            self._listener.role_lost()
        except Exception:
            log.exception("role given up although its work did not end")


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
