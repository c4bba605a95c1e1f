"""Slice wiper: deletes the slices of drivers that are gone, as a kubelet does.

Source: kubelet cm/dra (1.34 to 1.36).
"""

from __future__ import annotations

import logging
import threading
import time

from dra_driver.embedded.api.kinds import SLICES
from dra_driver.embedded.api.port import Api
from dra_driver.embedded.kubelet.plugin_watcher import PluginWatcher
from dra_driver.model.errors import ApiError
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

WIPE_AFTER_S = 30.0  # seconds without a connected instance after which a driver's slices are deleted


class SliceWiper:
    """Deletes the slices of one node, of every driver or of those without a connected instance."""

    def __init__(self, api: Api, node: str, plugins: PluginWatcher, after_s: float) -> None:
        self._api = api
        self._node = node
        self._plugins = plugins
        self._after_s = after_s
        self._known_drivers: set[str] = set()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start to watch the drivers' connections."""
        self._stop.clear()
        self._thread = threading.Thread(target=self._watch_connections, name="embedded-kubelet-wiper", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(10)

    def wipe_all(self) -> None:
        """Delete the node's slices, whatever their driver."""
        self._wipe(f"spec.nodeName={self._node}")

    def _watch_connections(self) -> None:
        """Delete the slices of a driver that has had no connected instance for `after_s` seconds."""
        lost: dict[str, float] = {}
        while not self._stop.wait(0.1):
            now = time.monotonic()
            self._known_drivers |= set(self._plugins.drivers())
            for driver in sorted(self._known_drivers):
                if any(plugin.is_connected for plugin in self._plugins.plugins(driver)):
                    lost.pop(driver, None)
                elif now - lost.setdefault(driver, now) >= self._after_s:
                    self._wipe(f"spec.nodeName={self._node},spec.driver={driver}")
                    self._known_drivers.discard(driver)
                    del lost[driver]

    def _wipe(self, selector: str) -> None:
        try:
            self._api.request("DELETE", SLICES.path(), query={"fieldSelector": selector})
        except ApiError as fault:
            log.warning("slices not deleted", extra=fields(node=self._node, err=fault.message))
