"""Plugin calls: the gRPC client with which a kubelet calls one DRA plugin.

In: claims (namespace, name, UID). Out: the devices of each, or the error. Replies are checked as the kubelet checks
them. Source: Kubernetes DRA plugin API v1 and v1beta1; pluginregistration v1; kubelet cm/dra.
"""

from __future__ import annotations

import logging
import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import grpc

from dra_driver.base.errors import NodeError, Retry
from dra_driver.base.machine import Stamp, stamp_of_status
from dra_driver.base.telemetry.logs import fields
from dra_driver.node._proto import dra_v1_pb2 as v1
from dra_driver.node._proto import dra_v1beta1_pb2 as v1beta1
from dra_driver.node._proto import plugin_registration_v1_pb2 as registration

DIAL_S = 10.0
GET_INFO_S = 1.0
NOTIFY_S = 5.0
_DIAL_POLL_S = 0.05
_WATCHED_S = 0.5  # longer than the 0.2 s after which grpc's thread notices that a channel is no longer watched
RPC_S = 45.0

_REGISTRATION = "/pluginregistration.Registration/"
_VERSIONS: Mapping[str, tuple[str, Any]] = {
    "v1.DRAPlugin": ("/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/", v1),
    "v1beta1.DRAPlugin": ("/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/", v1beta1),
}


@dataclass(frozen=True, slots=True)
class ClaimRef:
    """What a plugin receives about a claim."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class ReportedDevice:
    """One device as a plugin reported it; without request names it belongs to every request of the claim."""

    driver: str
    request_names: tuple[str, ...]
    pool: str
    device: str
    cdi_ids: tuple[str, ...]
    share_id: str = ""


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """What a plugin reports about itself on its registration socket."""

    type: str
    driver: str
    endpoint: str
    versions: tuple[str, ...]


def choose_version(offered: Sequence[str]) -> str:
    """Return the first of the offered DRA versions that this kubelet supports; "" if there is none."""
    return next((version for version in offered if version in _VERSIONS), "")


def _channel(path: Path, authority: str = "") -> grpc.Channel:
    options = [("grpc.default_authority", authority)] if authority else []
    return grpc.insecure_channel(f"unix:{path}", options=[*options, ("grpc.enable_http_proxy", 0)])


class Registrar:
    """The kubelet's side of one registration socket. It has to be closed after use."""

    def __init__(self, path: Path) -> None:
        self._path, self._given_up = path, threading.Event()
        self._channel = _channel(path, quote(str(path), safe=""))

    def get_info(self) -> PluginInfo:
        """Ask the plugin for its identity. Raises: NodeError("node.registration") if it does not answer in time."""
        try:
            self._await_listener(time.monotonic() + DIAL_S)
            info = self._call("GetInfo", registration.PluginInfo)(registration.InfoRequest(), timeout=GET_INFO_S)
        except (grpc.RpcError, OSError) as fault:
            raise NodeError("registration", f"GetInfo failed: {_text(fault)}", retry=Retry.LATER) from fault
        return PluginInfo(info.type, info.name, info.endpoint, tuple(info.supported_versions))

    def notify(self, error: str = "") -> None:
        """Inform the plugin that it is registered or, with `error`, why it is not.

        Raises: NodeError("node.registration").
        """
        status = registration.RegistrationStatus(plugin_registered=not error, error=error)
        try:
            self._call("NotifyRegistrationStatus", registration.RegistrationStatusResponse)(status, timeout=NOTIFY_S)
        except grpc.RpcError as fault:
            message = f"NotifyRegistrationStatus failed: {_text(fault)}"
            raise NodeError("registration", message, retry=Retry.LATER) from fault

    def give_up(self) -> None:
        """Stop waiting for a connection. May be called from any thread."""
        self._given_up.set()

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def _await_listener(self, deadline: float) -> None:
        """Wait until a process listens on the socket. Raises: OSError after the deadline."""
        while True:
            try:
                with socket.socket(socket.AF_UNIX) as probe:
                    return probe.connect(str(self._path))
            except OSError:
                if time.monotonic() > deadline or self._given_up.wait(_DIAL_POLL_S):
                    raise

    def _call(self, method: str, answer: Any) -> Any:
        return self._channel.unary_unary(
            _REGISTRATION + method,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString,
        )


class Plugin:
    """One registered instance of a DRA driver."""

    def __init__(self, driver: str, endpoint: Path, version: str, registrar_socket: Path) -> None:
        self.driver = driver
        self.endpoint = endpoint
        self.version = version
        self.registrar_socket = registrar_socket
        self.is_connected = True
        prefix, self._messages = _VERSIONS[version]
        self._channel = _channel(endpoint)
        self._channel.subscribe(self._on_connectivity, try_to_connect=True)
        self._prepare = self._call(prefix + "NodePrepareResources", self._messages.NodePrepareResourcesResponse)
        self._unprepare = self._call(prefix + "NodeUnprepareResources", self._messages.NodeUnprepareResourcesResponse)

    def prepare(
        self, claims: Sequence[ClaimRef], timeout_s: float = RPC_S
    ) -> dict[str, tuple[ReportedDevice, ...] | str]:
        """Prepare claims in one call; return the devices of each claim, or its error, by UID.

        Raises: NodeError("node.plugin-call") if the whole call fails, or if the reply does not match the request.
        """
        request = self._messages.NodePrepareResourcesRequest(claims=self._wire(claims))
        reply = self._send(self._prepare, request, claims, "NodePrepareResources", timeout_s)
        return {uid: entry.error or self._devices(entry.devices) for uid, entry in reply.items()}

    def unprepare(self, claims: Sequence[ClaimRef], timeout_s: float = RPC_S) -> dict[str, str]:
        """Unprepare claims in one call; return the error of each claim ("" for success) by UID.

        Raises: as `prepare`.
        """
        request = self._messages.NodeUnprepareResourcesRequest(claims=self._wire(claims))
        reply = self._send(self._unprepare, request, claims, "NodeUnprepareResources", timeout_s)
        return {uid: str(entry.error) for uid, entry in reply.items()}

    def close(self) -> None:
        """Close the connection after a moment: a thread of grpc still watches the channel now, and would crash."""
        self._channel.unsubscribe(self._on_connectivity)
        closing = threading.Timer(_WATCHED_S, self._channel.close)
        closing.daemon = True
        closing.start()

    def _on_connectivity(self, state: grpc.ChannelConnectivity) -> None:
        if state is grpc.ChannelConnectivity.READY:
            self.is_connected = True
        elif state in (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN):
            self.is_connected = False

    def _call(self, method: str, answer: Any) -> Callable[..., Any]:
        call: Callable[..., Any] = self._channel.unary_unary(
            method,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString,
        )
        return call

    def _wire(self, claims: Sequence[ClaimRef]) -> list[Any]:
        return [self._messages.Claim(namespace=c.namespace, name=c.name, uid=c.uid) for c in claims]

    def _send(
        self, call: Callable[..., Any], request: Any, claims: Sequence[ClaimRef], method: str, timeout_s: float
    ) -> Mapping[str, Any]:
        try:
            reply: Mapping[str, Any] = call(request, timeout=timeout_s).claims
        except grpc.RpcError as fault:
            raise self._fault(f"{method} failed: {_text(fault)}") from fault
        wanted = {claim.uid for claim in claims}
        if unknown := sorted(reply.keys() - wanted):
            raise self._fault(f"{method} returned result for unknown claim UID {unknown[0]}")
        if len(reply) < len(wanted):
            raise self._fault(f"{method} skipped {len(wanted) - len(reply)} of {len(wanted)} claims")
        return reply

    def _devices(self, devices: Sequence[Any]) -> tuple[ReportedDevice, ...]:
        return tuple(
            ReportedDevice(
                self.driver,
                tuple(d.request_names),
                d.pool_name,
                d.device_name,
                tuple(d.cdi_device_ids),
                getattr(d, "share_id", ""),
            )
            for d in devices
        )

    def _fault(self, message: str) -> NodeError:
        return NodeError("plugin-call", f"driver {self.driver}: {message}", retry=Retry.LATER)


def _text(fault: BaseException) -> str:
    if isinstance(fault, OSError):
        return f"no connection within {DIAL_S:g} s: {fault.strerror}"
    code, details = getattr(fault, "code", None), getattr(fault, "details", None)
    return f"{code().name}: {details()}" if callable(code) and callable(details) else str(fault)


# Plugin watcher: finds registration sockets and keeps the list of plugins as the kubelet does.

log = logging.getLogger(__name__)

_FIRST_DELAY_S = 0.5
_LAST_DELAY_S = 122.0


@dataclass(slots=True)
class _Socket:
    """A socket that was found, and the state of its registration."""

    identity: Stamp
    plugin: Plugin | None = None
    error: str = ""
    delay_s: float = _FIRST_DELAY_S
    next_try: float = 0.0


class PluginWatcher:
    """Polls the registrar folder in a thread. `on_change` is called after every registration and deregistration."""

    def __init__(self, folder: Path, *, poll_s: float = 0.05, on_change: Callable[[], None] = lambda: None) -> None:
        self._folder = folder
        self._poll_s = poll_s
        self._on_change = on_change
        self._changed = threading.Condition()
        self._sockets: dict[Path, _Socket] = {}
        self._order: list[Plugin] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._registering: Registrar | None = None

    def start(self) -> None:
        """Start to watch."""
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, name="embedded-kubelet-plugins", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop watching and close every connection, as a kubelet that ends does."""
        self._stop.set()
        if registering := self._registering:  # no process will ever listen on the socket that it waits for
            registering.give_up()
        if self._thread is not None:
            self._thread.join(20)
        with self._changed:
            for plugin in self._order:
                plugin.close()
            self._order.clear()
            self._sockets.clear()

    def plugins(self, driver: str) -> list[Plugin]:
        """Return the instances of a driver in the order of registration."""
        with self._changed:
            return [plugin for plugin in self._order if plugin.driver == driver]

    def newest(self, driver: str) -> Plugin | None:
        """Return the instance to call: the last registered one that is connected, otherwise the last registered one."""
        instances = self.plugins(driver)
        return next((p for p in reversed(instances) if p.is_connected), instances[-1] if instances else None)

    def drivers(self) -> list[str]:
        """Return the names of the registered drivers."""
        with self._changed:
            return sorted({plugin.driver for plugin in self._order})

    def errors(self) -> dict[Path, str]:
        """Return the sockets whose plugins could not be registered, with the errors."""
        with self._changed:
            return {path: seen.error for path, seen in self._sockets.items() if seen.error}

    def wait_for(self, driver: str, timeout_s: float, *, instances: int = 1) -> Plugin:
        """Wait until a driver is registered. Raises: NodeError("node.not-registered") with the errors so far."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while sum(plugin.driver == driver for plugin in self._order) < instances:
                if not self._changed.wait(max(0.0, deadline - time.monotonic())):
                    faults = "; ".join(f"{path.name}: {text}" for path, text in self.errors().items())
                    raise NodeError(
                        "not-registered", f"driver {driver} did not register within {timeout_s:g} s", hint=faults
                    )
            return next(plugin for plugin in reversed(self._order) if plugin.driver == driver)

    def _run(self) -> None:
        while not self._stop.is_set():
            self._update()
            self._stop.wait(self._poll_s)

    def _update(self) -> None:
        """Register and deregister plugins so that they match the existing sockets."""
        existing = dict(_sockets_in(self._folder))
        for path, seen in list(self._sockets.items()):
            if existing.get(path) != seen.identity:
                self._forget(path, seen)
        for path, identity in existing.items():
            seen = self._sockets.setdefault(path, _Socket(identity))
            if seen.plugin is None and time.monotonic() >= seen.next_try and not self._stop.is_set():
                self._try_to_register(path, seen)

    def _forget(self, path: Path, seen: _Socket) -> None:
        with self._changed:
            del self._sockets[path]
            if seen.plugin is not None:
                self._order.remove(seen.plugin)
                seen.plugin.close()
                log.info("plugin deregistered", extra=fields(driver=seen.plugin.driver, socket=str(path)))
            self._changed.notify_all()
        self._on_change()

    def _try_to_register(self, path: Path, seen: _Socket) -> None:
        registrar = self._registering = Registrar(path)
        if self._stop.is_set():
            registrar.give_up()
        try:
            plugin = self._register(path, registrar)
        except NodeError as fault:
            with self._changed:
                seen.error = fault.message
                seen.next_try = time.monotonic() + seen.delay_s
                seen.delay_s = min(2 * seen.delay_s, _LAST_DELAY_S)
                self._changed.notify_all()
            log.warning("plugin not registered", extra=fields(socket=str(path), err=fault.message))
            return
        finally:
            self._registering = None
            registrar.close()
        with self._changed:
            seen.plugin, seen.error = plugin, ""
            self._order.append(plugin)
            self._changed.notify_all()
        log.info("plugin registered", extra=fields(driver=plugin.driver, version=plugin.version, socket=str(path)))
        self._on_change()

    def _register(self, path: Path, registrar: Registrar) -> Plugin:
        info = registrar.get_info()
        endpoint = Path(info.endpoint or path)
        if refusal := self._refusal(info, endpoint):
            registrar.notify(refusal)
            raise NodeError("registration", refusal)
        registrar.notify()
        return Plugin(info.driver, endpoint, choose_version(info.versions), path)

    def _refusal(self, info: PluginInfo, endpoint: Path) -> str:
        """Return why a plugin may not register; "" if it may."""
        if info.type != "DRAPlugin":
            return f"no handler registered for plugin type: {info.type} at socket {endpoint}"
        if not info.versions:
            return f"empty list of supported versions of driver {info.driver}"
        if not choose_version(info.versions):
            return f"none of the versions of driver {info.driver} is supported: {', '.join(info.versions)}"
        if any(plugin.endpoint == endpoint for plugin in self.plugins(info.driver)):
            return f"endpoint {endpoint} already registered for driver {info.driver}"
        return ""


def _sockets_in(folder: Path) -> Iterator[tuple[Path, Stamp]]:
    """Yield the sockets below a folder. Files and folders whose names begin with a dot are ignored."""
    try:
        entries = list(os.scandir(folder))
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _sockets_in(Path(entry.path))
            continue
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        if stat.S_ISSOCK(status.st_mode):
            yield Path(entry.path), stamp_of_status(status)
