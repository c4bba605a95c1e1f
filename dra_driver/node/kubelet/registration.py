"""Same-name drivers: detects another driver that hands out the same GPUs and is registered under our name.

In: the kubelet's folder of registration sockets. Out: the reason to publish nothing, empty if there is no such driver,
and a callback when it changes. Each socket is asked once for its driver (GetInfo, as the kubelet does); after that,
this only checks that something still listens there. Another instance of this driver is recognized by the mark in its
answer and by the data folder that it shares with us. The check runs at the start, when the folder has changed, and once
a minute. The other driver's DRA service is never called.
Source: Kubernetes kubelet plugin registration API v1; the kubelet searches the folder, except for hidden files.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from dra_driver import __version__
from dra_driver.base.errors import NodeError
from dra_driver.base.machine import Stamp
from dra_driver.base.telemetry.logs import Loop, fields, start_thread
from dra_driver.hardware.facts import Problem
from dra_driver.node._proto import plugin_registration_v1_pb2 as messages
from dra_driver.node.kubelet.methods import PLUGIN_TYPE, REGISTRATION_SERVICE, VERSIONS, CallPool, registration_methods
from dra_driver.node.kubelet.sockets import identity, is_ours, is_refused, open_socket, remove, set_aside
from dra_driver.node.neighbours.pod_resources import call_once

log = logging.getLogger(__name__)

CHECK_SECONDS = 60.0
FOLDER_SECONDS = 2.0  # between two checks whether the folder has changed
ASK_SECONDS = 1.0
CODE = "node.namesake"
# Instances of this driver add to the answer of GetInfo their version, and when they started (`started`).
MARK = ("dra-driver-version", __version__)
STARTED = "dra-driver-started"
_ANSWER_BYTES = 1 << 20


@cache
def started() -> str:
    """Return when this function was first called in this process, in UTC and in a form that sorts by time."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class RegisteredPlugin:
    """The plugin that answers at a registration socket.

    `is_marked` is whether it is an instance of this driver. `started` is when its process started, in UTC and in a form
    that sorts by time; "" if it does not report that.
    """

    kind: str
    name: str
    endpoint: str
    is_marked: bool
    started: str = ""


class SameNameDrivers:
    """Keeps `reason` up to date, and calls `changed` whenever it changes."""

    def __init__(
        self,
        registrar_dir: Path,
        data_dir: Path,
        *,
        driver: str,
        changed: Callable[[], None] = lambda: None,
        check_s: float = CHECK_SECONDS,
        folder_s: float = FOLDER_SECONDS,
    ) -> None:
        self._folder, self._data_dir, self._driver = registrar_dir, data_dir, driver
        self._changed, self._check_s, self._folder_s = changed, check_s, folder_s
        self._known: dict[tuple[Path, Stamp], RegisteredPlugin] = {}
        self._seen: Stamp | None = None  # the folder's state when it was last checked
        self._waited: float | None = None  # seconds since the last check; None before the first turn
        self._loop = Loop(
            "same-name", self._turn, failure="check for another driver failed", fault_s=min(folder_s, check_s)
        )
        self.reason = ""
        self._has_contender = False

    @property
    def competing_agent(self) -> str:
        """Return the reason if the other driver is an agent of this driver with a data folder of its own, else ""."""
        return self.reason if self._has_contender else ""

    def start(self) -> None:
        """Check once, so that `reason` is known on return, and go on checking in a thread, which calls `changed`."""
        self._check()
        self._loop.start()

    def stop(self, timeout_s: float = 2.0) -> None:
        """End the thread."""
        self._loop.stop(timeout_s)

    def problems(self) -> tuple[Problem, ...]:
        """Return the reason as a problem of the node."""
        return (Problem(CODE, "node", self.reason),) if self.reason else ()

    def find(self) -> str:
        """Return a sentence about the other driver that is registered under our name now, "" if there is none."""
        known, self._known, self._has_contender = self._known, {}, False
        for path, made in _sockets(self._folder):
            plugin = known.get((path, made)) or ask(path)
            if plugin is None:  # the kubelet can't have registered it either
                continue
            self._known[path, made] = plugin
            if plugin.kind != PLUGIN_TYPE or plugin.name != self._driver or self._is_ours(plugin):
                continue
            if not plugin.is_marked:
                return f"another driver is registered as {self._driver} (socket {path})"
            # Of two agents of this driver, the one that started later stops publishing; of two that started in the same
            # millisecond, the one whose folder sorts last.
            if (plugin.started, str(_folder_of(plugin))) < (started(), str(self._data_dir)):
                self._has_contender = True
                return f"another agent of this driver is registered (socket {path}, folder {_folder_of(plugin)})"
        return ""

    def _check(self) -> bool:
        """Check once and return whether the reason has changed."""
        self._seen = identity(self._folder)
        found = self.find()
        if found == self.reason:
            return False
        self.reason = found
        if found:
            hint = "remove the other driver from this node; the agent checks again every minute"
            log.warning("no device is published", extra=fields(driver=self._driver, code=CODE, reason=found, hint=hint))
        else:
            log.info("no other driver is registered under this name any more", extra=fields(driver=self._driver))
        return True

    def _turn(self) -> float:
        pause = min(self._folder_s, self._check_s)
        if self._waited is None:  # `start` has just checked
            self._waited = 0.0
            if self.reason:
                self._changed()
            return pause
        self._waited += self._folder_s
        if self._waited >= self._check_s or identity(self._folder) != self._seen:
            self._waited = 0.0
            if self._check():
                self._changed()
        return pause

    def _is_ours(self, plugin: RegisteredPlugin) -> bool:
        return plugin.is_marked and _folder_of(plugin) == self._data_dir


def _folder_of(plugin: RegisteredPlugin) -> Path:
    return Path(plugin.endpoint).parent


def ask(path: Path) -> RegisteredPlugin | None:
    """Return the plugin that answers at a registration socket, or None if there is no answer."""
    method, request = f"/{REGISTRATION_SERVICE}/GetInfo", messages.InfoRequest()
    try:
        answer, marks = call_once(path, method, request, seconds=ASK_SECONDS, max_bytes=_ANSWER_BYTES)
        info = messages.PluginInfo.FromString(answer)
    except (grpc.RpcError, DecodeError):
        return None
    return RegisteredPlugin(info.type, info.name, info.endpoint, MARK[0] in marks, marks.get(STARTED, ""))


def _sockets(folder: Path) -> Iterator[tuple[Path, Stamp]]:
    """Yield the sockets on which a process listens, each with a value that changes if the socket is made again."""
    try:
        found = sorted(folder.rglob("*"))
    except OSError:
        return
    for path in found:
        is_hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        made = identity(path)
        if not is_hidden and made and path.is_socket() and not is_refused(path):
            yield path, made


# Registration: a second socket of the plugin's server, in the folder where the kubelet looks for plugins.

RETRY_FIRST_SECONDS, RETRY_LAST_SECONDS = 5.0, 120.0


class Registration:
    """Answers the kubelet at `path` with the driver's name and the `endpoint` of its DRA service.

    `also` lists the versions of other services at the endpoint.
    """

    def __init__(self, driver: str, path: Path, endpoint: Path, *, also: Sequence[str] = ()) -> None:
        self._driver, self._path, self._endpoint = driver, path, endpoint
        self._versions = [*VERSIONS, *also]
        self._made: Stamp | None = None  # identifies the socket that is ours
        self._mutex = threading.Lock()  # guards everything below
        self._is_open = self._is_stuck = False
        self._pause_s = RETRY_FIRST_SECONDS
        self._retry: threading.Timer | None = None
        self.is_registered = False
        self.last_error = ""

    @property
    def is_reachable(self) -> bool:
        """Return whether the socket is still ours, and will be offered again if the kubelet has refused it.

        Otherwise a kubelet would not find this plugin.
        """
        with self._mutex:
            return not self._is_open or (is_ours(self._path, self._made) and not self._is_stuck)

    def bind(self, server: grpc.Server) -> None:
        """Make a server that has not started yet listen here too. Raises: NodeError."""
        made = open_socket(self._path, partial(add_port, server))
        with self._mutex:
            self._made, self._is_open = made, True

    def methods(self, pool: CallPool) -> grpc.GenericRpcHandler[Any, Any]:
        """Return the methods of the registration service, answered by the threads of `pool`."""
        return registration_methods(self, pool)

    def stop(self) -> None:
        """Remove the socket, so that the kubelet sends no new calls to this instance."""
        with self._mutex:
            self._is_open = False
            if self._retry is not None:
                self._retry.cancel()
            remove(self._path, self._made)
            self.is_registered = False

    # What the kubelet calls

    def get_info(self, _request: messages.InfoRequest, context: grpc.ServicerContext) -> messages.PluginInfo:
        """Return the plugin's name and endpoint, with a mark by which other instances of this driver recognize it."""
        context.set_trailing_metadata((MARK, (STARTED, started())))
        return messages.PluginInfo(
            type=PLUGIN_TYPE, name=self._driver, endpoint=str(self._endpoint), supported_versions=self._versions
        )

    def notify(
        self, request: messages.RegistrationStatus, _context: grpc.ServicerContext
    ) -> messages.RegistrationStatusResponse:
        """Record whether the kubelet accepted the registration; after a refusal, make the socket again later."""
        self.is_registered, self.last_error = request.plugin_registered, request.error
        if request.plugin_registered:
            log.info("registered with the kubelet", extra=fields(driver=self._driver))
        else:
            log.error("the kubelet refused the registration", extra=fields(driver=self._driver, err=request.error))
            self._try_later()
        return messages.RegistrationStatusResponse()

    # The socket

    def _try_later(self) -> None:
        with self._mutex:
            if not self._is_open or (self._retry is not None and self._retry.is_alive()):
                return
            retry = threading.Timer(self._pause_s, self._reopen)
            retry.name, retry.daemon = "registration", True
            try:
                start_thread(retry)
            except NodeError as error:  # only a new start of the process makes the kubelet ask again
                self._is_stuck, self.last_error = True, str(error)
                return
            self._retry = retry
            self._pause_s = min(self._pause_s * 2, RETRY_LAST_SECONDS)

    def _reopen(self) -> None:
        with self._mutex:
            if not self._is_open or not is_ours(self._path, self._made):
                return
            aside = set_aside(self._path)
            try:
                aside.unlink(missing_ok=True)
                os.link(self._path, aside)
                self._path.unlink()
                os.link(aside, self._path)
                aside.unlink()
            except OSError as error:
                self.last_error = f"socket {self._path} can't be re-created: {error.strerror}"
                log.warning("registration socket can't be re-created", extra=fields(err=self.last_error))
            else:
                log.info("registration socket re-created", extra=fields(socket=str(self._path)))


def add_port(server: grpc.Server, path: Path) -> None:
    """Bind a unix socket, and listen on it. Raises: NodeError("node.socket")."""
    try:
        server.add_insecure_port(f"unix:{path}")
    except RuntimeError as exc:
        raise NodeError("socket", f"can't listen on {path}: {exc}") from exc
