"""Plugin watcher: finds registration sockets and keeps the list of plugins as the kubelet does.

In: a folder. Out: the registered instances of each driver, in the order of registration. When a socket disappears, its
plugin is deregistered; when a socket is recreated, its plugin is registered again; a failed registration is retried
with growing delays. Source: kubelet pluginmanager (as of 1.36), cm/dra/plugin.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dra_driver.embedded.kubelet.plugin_calls import Plugin, PluginInfo, Registrar, choose_version
from dra_driver.model.errors import NodeError
from dra_driver.model.stamp import Stamp, stamp_of_status
from dra_driver.telemetry.logs import fields

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
