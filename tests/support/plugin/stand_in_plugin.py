"""A DRA plugin on real sockets whose answers a test chooses, for tests of the embedded kubelet."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from dra_driver.node._proto import dra_v1_pb2 as v1
from dra_driver.node._proto import dra_v1beta1_pb2 as v1beta1
from dra_driver.node._proto import plugin_registration_v1_pb2 as registration

SERVICES = {
    "v1.DRAPlugin": ("k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin", v1),
    "v1beta1.DRAPlugin": ("k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin", v1beta1),
}


class StandInPlugin:
    """`devices` by claim UID are what Prepare answers; `errors` by claim UID what Prepare and Unprepare refuse with."""

    def __init__(self, folder: Path, driver: str = "gpu.example.com", *, name: str = "", versions=("v1.DRAPlugin",)):
        self.driver = driver
        self.versions = list(versions)
        self.type = "DRAPlugin"
        self.registrar = folder / "plugins_registry" / f"{name or driver}-reg.sock"
        self.socket = folder / "plugins" / f"{name or driver}.sock"
        self.devices: dict[str, list[dict]] = {}
        self.errors: dict[str, str] = {}
        self.extra_uids: list[str] = []
        self.skip = False
        self.hang = threading.Event()
        self.hang.set()
        self.calls: list[tuple[str, str, list[str]]] = []
        self.statuses: list[tuple[bool, str]] = []
        self.authorities: list[str] = []
        self._servers: list[grpc.Server] = []

    def start(self, *, registers: bool = True) -> StandInPlugin:
        for version in self.versions:
            if version in SERVICES:
                service, messages = SERVICES[version]
                self._serve_dra(service, messages, version)
                break
        if registers:
            self.register()
        return self

    def register(self) -> None:
        handlers = {
            "GetInfo": _handler(self._info, registration.InfoRequest),
            "NotifyRegistrationStatus": _handler(self._notified, registration.RegistrationStatus),
        }
        self._serve(self.registrar, "pluginregistration.Registration", handlers)

    def stop(self) -> None:
        self.hang.set()
        for server in reversed(self._servers):
            server.stop(0).wait(60)
        self._servers.clear()

    def deregister(self) -> None:
        self._servers.pop().stop(0).wait(60)

    def _serve(self, socket: Path, service: str, handlers) -> None:
        socket.parent.mkdir(parents=True, exist_ok=True)
        server = grpc.server(ThreadPoolExecutor(max_workers=8))
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        server.add_insecure_port(f"unix:{socket}")
        server.start()
        self._servers.append(server)

    def _serve_dra(self, service: str, messages, version: str) -> None:
        def prepare(request, _context):
            self.hang.wait(60)
            self.calls.append((version, "prepare", [claim.uid for claim in request.claims]))
            answer = messages.NodePrepareResourcesResponse()
            for claim in [] if self.skip else request.claims:
                entry = answer.claims[claim.uid]
                entry.error = self.errors.get(claim.uid, "")
                for device in self.devices.get(claim.uid, []):
                    entry.devices.add(**device)
            for uid in self.extra_uids:
                answer.claims[uid].error = ""
            return answer

        def unprepare(request, _context):
            self.calls.append((version, "unprepare", [claim.uid for claim in request.claims]))
            answer = messages.NodeUnprepareResourcesResponse()
            for claim in request.claims:
                answer.claims[claim.uid].error = self.errors.get(claim.uid, "")
            return answer

        handlers = {
            "NodePrepareResources": _handler(prepare, messages.NodePrepareResourcesRequest),
            "NodeUnprepareResources": _handler(unprepare, messages.NodeUnprepareResourcesRequest),
        }
        self._serve(self.socket, service, handlers)

    def _info(self, _request, _context):
        return registration.PluginInfo(
            type=self.type, name=self.driver, endpoint=str(self.socket), supported_versions=self.versions
        )

    def _notified(self, request, _context):
        self.statuses.append((request.plugin_registered, request.error))
        return registration.RegistrationStatusResponse()


def _handler(function, message):
    return grpc.unary_unary_rpc_method_handler(
        function,
        request_deserializer=message.FromString,
        response_serializer=lambda answer: answer.SerializeToString(),
    )
