"""The supervisor's unix socket, which only this user can open, with one request and one answer per connection.

In: lines (`wire`). Out: the results of the supervisor. An invalid message gets an error and has no other effect; a
client that sends nothing is disconnected after a few seconds.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from dra_driver import __version__
from dra_driver.model.errors import DriverError, NodeError, Retry, SharingError
from dra_driver.mps import wire
from dra_driver.mps.supervision.reports import DaemonReport
from dra_driver.mps.supervision.supervisor import DaemonSupervisor
from dra_driver.mps.wire import MpsCommand
from dra_driver.telemetry.logs import fields
from dra_driver.telemetry.thread_start import start_thread

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
                    answer = self._answer(wire.request_of(_line(connection)), began)
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
            part = connection.recv(min(65536, wire.LINE_BYTES + 1 - len(data)))
        except TimeoutError as exc:
            raise SharingError("mps-bad-request", f"no complete request within {REQUEST_S:g} s") from exc
        if not part:
            break
        data += part
        if len(data) > wire.LINE_BYTES:
            raise SharingError("mps-bad-request", f"a request longer than {wire.LINE_BYTES} bytes")
    return data


def _send(connection: socket.socket, answer: dict[str, Any]) -> None:
    with suppress(OSError):
        connection.sendall(wire.line_of(answer))


def _done(result: dict[str, Any]) -> dict[str, Any]:
    return {"version": wire.VERSION, "result": result}


def _failed(error: DriverError) -> dict[str, Any]:
    return {"version": wire.VERSION, "error": wire.error_wire(error)}


def _report_wire(report: DaemonReport) -> dict[str, Any]:
    state = report.state
    return {
        "device": wire.device_wire(state.device),
        "settings": wire.settings_wire(state.settings),
        "isReady": report.is_ready,
        "pid": state.process.pid if state.process else None,
        "pipeDir": str(report.folder.pipe),
        "shmDir": str(report.folder.shm),
        "restarts": report.restarts,
        "error": report.error,
    }
