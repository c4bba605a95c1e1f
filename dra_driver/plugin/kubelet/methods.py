"""Method tables: our services in the form that gRPC needs, typed by hand over the generated messages.

Generated service stubs are not used, because they would require a grpcio at least as new as their generator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

import grpc

from dra_driver.plugin._proto.k8s.dra.v1 import api_pb2 as v1
from dra_driver.plugin._proto.k8s.dra.v1beta1 import api_pb2 as v1beta1
from dra_driver.plugin._proto.k8s.pluginregistration.v1 import api_pb2 as registration

Request = TypeVar("Request")
Response = TypeVar("Response")
Context = grpc.ServicerContext
Behaviour = Callable[[Any, Context], Any]

REGISTRATION_SERVICE = "pluginregistration.Registration"
PLUGIN_TYPE = "DRAPlugin"
# The versions that the registration lists, in the order in which the kubelet chooses, each with its gRPC service.
VERSIONS = {
    "v1.DRAPlugin": "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin",
    "v1beta1.DRAPlugin": "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin",
}
MESSAGES: Mapping[str, Any] = {"v1.DRAPlugin": v1, "v1beta1.DRAPlugin": v1beta1}


class RegistrationService(Protocol):
    """What the kubelet calls on the registration socket."""

    def get_info(self, request: registration.InfoRequest, context: Context) -> registration.PluginInfo:
        """Return the driver's name, the path of its DRA socket, and the versions that it serves."""

    def notify(
        self, request: registration.RegistrationStatus, context: Context
    ) -> registration.RegistrationStatusResponse:
        """Record whether the kubelet accepted the registration."""


def registration_methods(service: RegistrationService) -> grpc.GenericRpcHandler[Any, Any]:
    """Return the method table of the registration socket."""
    return grpc.method_handlers_generic_handler(
        REGISTRATION_SERVICE,
        {
            "GetInfo": _unary(service.get_info, registration.InfoRequest),
            "NotifyRegistrationStatus": _unary(service.notify, registration.RegistrationStatus),
        },
    )


def dra_methods(
    version: str,
    prepare: Behaviour,
    unprepare: Behaviour,
) -> grpc.GenericRpcHandler[Any, Any]:
    """Return the method table of one version of the DRA service; its messages are those of `MESSAGES[version]`."""
    messages = MESSAGES[version]
    return grpc.method_handlers_generic_handler(
        VERSIONS[version],
        {
            "NodePrepareResources": _unary(prepare, messages.NodePrepareResourcesRequest),
            "NodeUnprepareResources": _unary(unprepare, messages.NodeUnprepareResourcesRequest),
        },
    )


def _unary(behaviour: Behaviour, request: Any) -> grpc.RpcMethodHandler[Any, Any]:
    return grpc.unary_unary_rpc_method_handler(
        behaviour,
        request_deserializer=request.FromString,
        response_serializer=lambda message: message.SerializeToString(),
    )
