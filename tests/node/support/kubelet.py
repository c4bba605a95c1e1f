"""FakeKubelet: a gRPC client that talks to the plugin's sockets as a kubelet does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc

from dra_driver.node._proto import dra_v1_pb2 as v1
from dra_driver.node._proto import plugin_registration_v1_pb2 as registration
from dra_driver.node.kubelet.methods import MESSAGES, REGISTRATION_SERVICE, VERSIONS

KUBELET_SECONDS = 45.0


class FakeKubelet:
    """Finds the registration socket, registers, then calls the endpoint that the plugin named."""

    def __init__(self, registrar_dir: Path) -> None:
        self.registrar_dir = registrar_dir
        self.info = registration.PluginInfo()

    def sockets(self) -> list[Path]:
        return sorted(self.registrar_dir.glob("*.sock"))

    def register(self, socket: Path | None = None, *, error: str = "") -> registration.PluginInfo:
        with grpc.insecure_channel(f"unix:{socket or self.sockets()[0]}") as channel:
            self.info = self._call(
                channel, f"/{REGISTRATION_SERVICE}/GetInfo", registration.InfoRequest(), registration.PluginInfo
            )
            status = registration.RegistrationStatus(plugin_registered=not error, error=error)
            path = f"/{REGISTRATION_SERVICE}/NotifyRegistrationStatus"
            self._call(channel, path, status, registration.RegistrationStatusResponse)
        return self.info

    def prepare(self, *claims: v1.Claim, version: str = "v1.DRAPlugin", seconds: float = KUBELET_SECONDS) -> Any:
        return self._dra(version, "NodePrepareResources", claims, seconds)

    def unprepare(self, *claims: v1.Claim, version: str = "v1.DRAPlugin", seconds: float = KUBELET_SECONDS) -> Any:
        return self._dra(version, "NodeUnprepareResources", claims, seconds)

    def _dra(self, version: str, method: str, claims: tuple[v1.Claim, ...], seconds: float) -> Any:
        messages = MESSAGES[version]
        copies = [messages.Claim(namespace=c.namespace, uid=c.uid, name=c.name) for c in claims]
        request = getattr(messages, f"{method}Request")(claims=copies)
        with grpc.insecure_channel(f"unix:{self.info.endpoint}") as channel:
            answer = getattr(messages, f"{method}Response")
            return self._call(channel, f"/{VERSIONS[version]}/{method}", request, answer, seconds).claims

    @staticmethod
    def _call(channel: grpc.Channel, path: str, request: Any, answer: Any, seconds: float = 10.0) -> Any:
        call = channel.unary_unary(
            path, request_serializer=lambda m: m.SerializeToString(), response_deserializer=answer.FromString
        )
        return call(request, timeout=seconds)


def claim(uid: str) -> v1.Claim:
    """Return the claim as the kubelet names it."""
    return v1.Claim(namespace="ns", uid=uid, name=f"claim-{uid}")
