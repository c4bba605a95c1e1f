"""`dra-driver mps`: flags, signals, and the lock that makes this process the only supervisor of its driver on the node.

SIGTERM ends the supervisor, but not its daemons and their clients; the next supervisor finds them.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import logging
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from dra_driver import __version__
from dra_driver.base.errors import DriverError, ExitCode, NodeError, Retry, SharingError, UsageError
from dra_driver.base.flags import FLAGS, Flag, add_to, resolve
from dra_driver.base.machine import read_boot_id
from dra_driver.base.names import check_driver_name
from dra_driver.base.telemetry import logs
from dra_driver.base.telemetry.logs import fields, start_thread
from dra_driver.node.mps import client
from dra_driver.node.mps import daemon as cgroups
from dra_driver.node.mps.client import MpsCommand, call_supervisor
from dra_driver.node.mps.daemon_folder import SHM_MIB, DaemonReport
from dra_driver.node.mps.launch import ControlProgram, find_program, simulated_program
from dra_driver.node.mps.supervision import DaemonSupervisor

# The supervisor's unix socket, which only this user can open, with one request and one answer per connection.

log = logging.getLogger(__name__)

REQUEST_S = 5.0  # within which a complete request must arrive
CONNECTIONS = 32  # at the same time; further clients get an error and may try again
_BACKLOG = 64


class SupervisorServer:
    """The server at `path`. Raises: NodeError("node.socket"), ("node.socket-in-use")."""

    def __init__(self, path: Path, supervisor: DaemonSupervisor) -> None:
        self._path, self._supervisor = path, supervisor
        self._free = threading.BoundedSemaphore(CONNECTIONS)
        self._socket = _listen(path)
        self._inode = path.lstat().st_ino
        self._stopped = False

    def run(self) -> None:
        """Answer requests until `stop` is called."""
        while not self._stopped:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                if not self._stopped:
                    log.exception("MPS socket failed", extra=fields(socket=str(self._path)))
                return
            connection.settimeout(REQUEST_S)
            if not self._free.acquire(blocking=False):
                _send(connection, _failed(SharingError("mps-busy", "too many requests at once", retry=Retry.NOW)))
                connection.close()
                continue
            try:
                start_thread(threading.Thread(target=self._serve, args=(connection,), name="request", daemon=True))
            except NodeError as error:  # this request fails, and the supervisor goes on
                self._free.release()
                _send(connection, _failed(SharingError("mps-busy", str(error), retry=Retry.NOW)))
                connection.close()

    def stop(self) -> None:
        """Close the socket, and remove its file if it is still this server's."""
        self._stopped = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with suppress(OSError):
            if self._path.lstat().st_ino == self._inode:
                self._path.unlink()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                began = time.monotonic()
                try:
                    _check_peer(connection)
                    answer = self._answer(client.request_of(_line(connection)), began)
                except DriverError as error:
                    log.info("MPS request refused", extra=fields(code=error.code, err=str(error)))
                    answer = _failed(error)
                except OSError:
                    return  # the client is gone
                except Exception:
                    log.exception("MPS request failed")
                    answer = _failed(SharingError("mps-refused", "a bug in the MPS supervisor; see its log"))
                _send(connection, answer)
        finally:
            self._free.release()

    def _answer(self, request: MpsCommand, began: float) -> dict[str, Any]:
        supervisor, deadline = self._supervisor, began + request.deadline_s
        if request.command == "list" or request.device is None:
            daemons = [_report_wire(report) for report in supervisor.reports()]
            return _done({"release": __version__, "pid": os.getpid(), "daemons": daemons})
        if request.command == "start" and request.settings is not None:
            folder = supervisor.start(request.device, request.settings, deadline)
            return _done({"pipeDir": str(folder.pipe), "shmDir": str(folder.shm)})
        if request.command == "stop":
            supervisor.stop(request.device, deadline)
            return _done({})
        if request.command == "tidy":
            return _done({"removed": supervisor.tidy(request.device, deadline)})
        report, servers = supervisor.status(request.device, deadline)
        listed = [{"pid": pid, "status": status} for pid, status in servers.items()]
        return _done({**_report_wire(report), "servers": listed})


def _listen(path: Path) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket():
            path.unlink()  # a dead supervisor left it, since this process holds the supervisors' lock
        before = os.umask(0o177)
        try:
            listening.bind(os.fspath(path))
        finally:
            os.umask(before)
        listening.listen(_BACKLOG)
    except OSError as exc:
        listening.close()
        raise NodeError("socket", f"socket {path} can't be opened: {exc.strerror or exc}") from exc
    return listening


def _check_peer(connection: socket.socket) -> None:
    """Refuse other users, in case the mode of the socket should ever let them connect."""
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if uid not in {0, os.geteuid()}:
        raise SharingError("mps-bad-request", f"user {uid} may not use the MPS supervisor")


def _line(connection: socket.socket) -> bytes:
    """Return one line. Raises: SharingError("sharing.mps-bad-request") if it is too long or too slow."""
    ends = time.monotonic() + REQUEST_S
    data = b""
    while not data.endswith(b"\n"):
        try:
            connection.settimeout(max(0.01, ends - time.monotonic()))
            part = connection.recv(min(65536, client.LINE_BYTES + 1 - len(data)))
        except TimeoutError as exc:
            raise SharingError("mps-bad-request", f"no complete request within {REQUEST_S:g} s") from exc
        if not part:
            break
        data += part
        if len(data) > client.LINE_BYTES:
            raise SharingError("mps-bad-request", f"a request longer than {client.LINE_BYTES} bytes")
    return data


def _send(connection: socket.socket, answer: dict[str, Any]) -> None:
    with suppress(OSError):
        connection.sendall(client.line_of(answer))


def _done(result: dict[str, Any]) -> dict[str, Any]:
    return {"version": client.VERSION, "result": result}


def _failed(error: DriverError) -> dict[str, Any]:
    return {"version": client.VERSION, "error": client.error_wire(error)}


def _report_wire(report: DaemonReport) -> dict[str, Any]:
    state = report.state
    return {
        "device": client.device_wire(state.device),
        "settings": client.settings_wire(state.settings),
        "isReady": report.is_ready,
        "pid": state.process.pid if state.process else None,
        "pipeDir": str(report.folder.pipe),
        "shmDir": str(report.folder.shm),
        "restarts": report.restarts,
        "error": report.error,
    }


_SHOW_S = 5.0
_MAX_SHM_MIB = 1 << 20
_SHARED = {
    "--driver-name",
    "--kubelet-plugins-directory-path",
    "--nvidia-driver-root",
    "--nvidia-driver-root-mount",
    "--proc-root",
    "--hardware",
    "--log-format",
}
_FLAGS = (
    *(flag for flag in FLAGS if flag.name in _SHARED),
    Flag(
        "--mps-cgroup",
        "",
        "cgroup (v2) for the daemons, so that they outlive this process's container; empty: this process's own",
        "DIR",
    ),
    Flag("--mps-shared-memory-mib", str(SHM_MIB), "the most that clients of one device may store in /dev/shm", "MIB"),
)
_EPILOG = """Each flag has an environment variable (upper case, underscores: DRIVER_NAME); the flag wins. SIGTERM ends
the supervisor and leaves the MPS daemons running; the next supervisor takes them over. Exit status: 0 ended by a
signal, 2 wrong usage, 5 a fault of the environment, 70 a bug."""


def main(argv: Sequence[str]) -> int:
    """Run the supervisor until SIGTERM; return the exit status."""
    try:
        values, shows_daemons = _parse(argv)
        root = _root(values)
        if shows_daemons:
            return _show(root / client.SOCKET_NAME)
        logs.set_up(values["log_format"])
        return _run(values, root)
    except DriverError as error:
        print(f"dra-driver mps: {error} [{error.code}]", file=sys.stderr)  # noqa: T201 - logging is not set up yet
        return error.exit_code
    except Exception:
        log.exception("bug: unexpected error")
        return ExitCode.BUG


def _parse(argv: Sequence[str]) -> tuple[dict[str, str], bool]:
    parser = argparse.ArgumentParser(
        prog="dra-driver mps",
        description="The MPS supervisor: keeps an MPS control daemon for each GPU or MIG device shared with MPS.",
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"dra-driver {__version__}")
    add_to(parser, _FLAGS)
    parser.add_argument(
        "--show", action="store_true", help="print the daemons that the running supervisor keeps, as JSON, and exit"
    )
    given = vars(parser.parse_args(argv))
    return resolve(given, os.environ, _FLAGS), bool(given["show"])


def _root(values: dict[str, str]) -> Path:
    driver = check_driver_name(values["driver_name"])
    return Path(values["kubelet_plugins_directory_path"]).absolute() / driver / client.FOLDER_NAME


def _show(path: Path) -> int:
    """Print the daemons that a supervisor keeps, with the servers that each of them lists. Raises: SharingError."""
    listing = call_supervisor(path, "list", {}, _SHOW_S)
    for daemon in listing.get("daemons", ()):
        try:
            daemon.update(call_supervisor(path, "status", {"device": daemon["device"]}, _SHOW_S))
        except SharingError as error:
            daemon["error"] = daemon["error"] or str(error)
    print(json.dumps(listing, indent=2))  # noqa: T201 - the requested output
    return ExitCode.OK


def _cgroup(folder: str) -> Path | None:
    """Return the folder for the daemons' cgroups; None if none is configured or the node has only cgroups v1."""
    if folder and not cgroups.has_version_2(Path(folder)):
        log.warning("no cgroup v2 on this node: MPS daemons end with this container", extra=fields(file=folder))
        return None
    return Path(folder) if folder else None


def _run(values: dict[str, str], root: Path) -> int:
    lock = _lock(root)
    supervisor = DaemonSupervisor(
        _daemons(root),
        _finder(values),
        boot_id=_boot_id(values["proc_root"]),
        cgroup=_cgroup(values["mps_cgroup"]),
        shm_mib=_shm_mib(values["mps_shared_memory_mib"]),
    )
    server = SupervisorServer(root / client.SOCKET_NAME, supervisor)

    def stop(number: int, _frame: FrameType | None) -> None:
        log.info("stopping", extra=fields(signal=signal.Signals(number).name))
        server.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    log.info(
        "MPS supervisor starting", extra=fields(driver=values["driver_name"], version=__version__, pid=os.getpid())
    )
    supervisor.begin()
    log.info("MPS supervisor ready", extra=fields(socket=str(root / client.SOCKET_NAME)))
    server.run()
    supervisor.close()
    _remove_empty_folders(root)
    os.close(lock)
    return ExitCode.OK


def _lock(root: Path) -> int:
    """Take the lock that only one supervisor can hold in this folder, and return its descriptor.

    Raises: NodeError("node.folder"), ("node.mps-running").
    """
    try:
        root.mkdir(mode=0o755, parents=True, exist_ok=True)
        fd = os.open(root / "supervisor.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as exc:
        raise NodeError("folder", f"folder {root} can't be used: {exc.strerror}") from exc
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as exc:
        os.close(fd)
        raise NodeError(
            "mps-running",
            f"another MPS supervisor runs in {root}",
            hint="only one can run for each driver name on a node; end the other one first",
        ) from exc
    return fd


def _daemons(root: Path) -> Path:
    """Make the folder of the daemons. Raises: NodeError("node.folder")."""
    folder = root / "d"
    try:
        folder.mkdir(mode=0o755, exist_ok=True)
    except OSError as exc:
        raise NodeError("folder", f"folder {folder} can't be used: {exc.strerror}") from exc
    return folder


def _remove_empty_folders(root: Path) -> None:
    """Remove the folder if no daemon is kept, and the driver's own folder if nothing else is in it."""
    with suppress(OSError):  # a folder is not empty: it has a daemon's folder, or the agent's files, in it
        (root / "d").rmdir()
        (root / "supervisor.lock").unlink()
        root.rmdir()
        root.parent.rmdir()


def _finder(values: dict[str, str]) -> Callable[[], ControlProgram]:
    if values["hardware"].startswith("simulated:"):
        return simulated_program
    mount = Path(values["nvidia_driver_root_mount"] or values["nvidia_driver_root"]).absolute()
    return lambda: find_program(mount, is_private=os.geteuid() == 0)


def _shm_mib(text: str) -> int:
    """Return the flag's value as a number of MiB. Raises: UsageError("usage.flags")."""
    if not (text.isdecimal() and text.isascii() and 0 < int(text[:9]) <= _MAX_SHM_MIB):
        raise UsageError(
            "flags", f"--mps-shared-memory-mib={text[:20]!r} is not a whole number of MiB up to {_MAX_SHM_MIB}"
        )
    return int(text)


def _boot_id(proc_root: str) -> str:
    try:
        return read_boot_id(proc_root)
    except OSError as exc:
        log.warning("boot id can't be read: a reboot won't be noticed", extra=fields(file=proc_root, err=str(exc)))
        return ""
