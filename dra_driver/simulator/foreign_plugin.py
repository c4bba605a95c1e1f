"""Foreign plugin: a stand-in for another vendor's DRA driver, for examples that need one (a NIC beside the GPU).

In: a driver name and its devices. Out: ResourceSlices in the API, and a plugin on unix sockets that accepts every claim
and returns no CDI ids. It touches no hardware.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from dra_driver.base.errors import ApiError
from dra_driver.base.names import pool_name
from dra_driver.base.telemetry.logs import fields
from dra_driver.base.wire import DeviceWire, SliceWire
from dra_driver.node._proto import dra_v1_pb2 as v1
from dra_driver.node._proto import plugin_registration_v1_pb2 as registration
from dra_driver.simulator.api_server import Api
from dra_driver.simulator.plugin_watcher import PluginWatcher
from dra_driver.simulator.store import SLICES


def publish_slice(api: Api, driver: str, node: str, devices: Sequence[DeviceWire]) -> SliceWire:
    """Publish the devices of a foreign driver as one slice."""
    spec = {
        "driver": driver,
        "nodeName": node,
        "pool": {"name": pool_name(node, driver), "generation": 1, "resourceSliceCount": 1},
        "devices": list(devices),
    }
    return api.request("POST", SLICES.path(), body={"metadata": {"generateName": f"{node}-"}, "spec": spec})


class ForeignPlugin:
    """One registered plugin that accepts every claim and changes nothing."""

    def __init__(self, driver: str, *, registrar_dir: Path, plugins_dir: Path) -> None:
        self.driver = driver
        self._endpoint = plugins_dir / driver / "dra.sock"
        self._registrar = registrar_dir / f"{driver}-reg.sock"
        self._servers: list[grpc.Server] = []

    def start(self) -> None:
        """Serve both sockets; the registration socket is created last."""
        self._endpoint.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        self._serve(
            self._endpoint,
            "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin",
            {
                "NodePrepareResources": (self._prepare, v1.NodePrepareResourcesRequest),
                "NodeUnprepareResources": (self._unprepare, v1.NodeUnprepareResourcesRequest),
            },
        )
        self._serve(
            self._registrar,
            "pluginregistration.Registration",
            {
                "GetInfo": (self._info, registration.InfoRequest),
                "NotifyRegistrationStatus": (self._accept_status, registration.RegistrationStatus),
            },
        )

    def stop(self) -> None:
        """Stop serving; the registration socket is removed first."""
        for server in reversed(self._servers):
            server.stop(0).wait(5)
        self._servers.clear()

    def _serve(self, socket: Path, service: str, methods: Mapping[str, tuple[Any, Any]]) -> None:
        server = grpc.server(ThreadPoolExecutor(max_workers=2))
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                function,
                request_deserializer=message.FromString,
                response_serializer=lambda answer: answer.SerializeToString(),
            )
            for name, (function, message) in methods.items()
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        server.add_insecure_port(f"unix:{socket}")
        server.start()
        self._servers.append(server)

    def _info(self, _request: Any, _context: Any) -> Any:
        return registration.PluginInfo(
            type="DRAPlugin", name=self.driver, endpoint=str(self._endpoint), supported_versions=["v1.DRAPlugin"]
        )

    def _accept_status(self, _request: Any, _context: Any) -> Any:
        return registration.RegistrationStatusResponse()

    def _prepare(self, request: Any, _context: Any) -> Any:
        return v1.NodePrepareResourcesResponse(
            claims={claim.uid: v1.NodePrepareResourceResponse() for claim in request.claims}
        )

    def _unprepare(self, request: Any, _context: Any) -> Any:
        return v1.NodeUnprepareResourcesResponse(
            claims={claim.uid: v1.NodeUnprepareResourceResponse() for claim in request.claims}
        )


# Slice wiper: deletes the slices of drivers that are gone, as a kubelet does.

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
