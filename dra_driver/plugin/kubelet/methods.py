"""Method tables: the plugin's services as paths with their methods, over the generated messages.

Generated service stubs are not used, because they would require a grpcio at least as new as their generator.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from dra_driver.plugin._proto.k8s.dra.v1 import api_pb2 as v1
from dra_driver.plugin._proto.k8s.dra.v1beta1 import api_pb2 as v1beta1
from dra_driver.plugin._proto.k8s.pluginregistration.v1 import api_pb2 as registration
from dra_driver.plugin.rpc.call import RpcCall, RpcMethod

REGISTRATION_SERVICE = "pluginregistration.Registration"
PLUGIN_TYPE = "DRAPlugin"
# The versions that the registration lists, in the kubelet's order of preference, each with its gRPC service.
VERSIONS = {
    "v1.DRAPlugin": "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin",
    "v1beta1.DRAPlugin": "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin",
}
MESSAGES: Mapping[str, Any] = {"v1.DRAPlugin": v1, "v1beta1.DRAPlugin": v1beta1}

# How many calls of each kind are answered at the same time; further calls wait for their turn. A Prepare may wait 35 s
# for a device, and must not hold up the Unprepare that frees the device.
PREPARES, UNPREPARES, REGISTRATIONS = 128, 32, 2

RpcMethods = Mapping[str, RpcMethod]
"""Methods by their path, which is "/service/method"."""


class RegistrationService(Protocol):
    """The service that the kubelet calls on the registration socket."""

    def get_info(self, request: registration.InfoRequest, call: RpcCall) -> registration.PluginInfo:
        """Return the driver's name, the path of its DRA socket, and the versions that it serves."""

    def notify(
        self, request: registration.RegistrationStatus, call: RpcCall
    ) -> registration.RegistrationStatusResponse:
        """Record whether the kubelet accepted the registration."""


class ClaimMethod(Protocol):
    """The function that answers a method of the DRA service."""

    def __call__(self, request: Any, call: RpcCall) -> Any:
        """Return the answer."""


def registration_methods(service: RegistrationService) -> RpcMethods:
    """Return the methods of the registration socket."""
    path = f"/{REGISTRATION_SERVICE}"
    return {
        f"{path}/GetInfo": RpcMethod(service.get_info, registration.InfoRequest.FromString, REGISTRATIONS),
        f"{path}/NotifyRegistrationStatus": RpcMethod(
            service.notify, registration.RegistrationStatus.FromString, REGISTRATIONS
        ),
    }


def dra_methods(version: str, prepare: ClaimMethod, unprepare: ClaimMethod) -> RpcMethods:
    """Return the methods of one version of the DRA service; its messages are those of `MESSAGES[version]`."""
    messages, path = MESSAGES[version], f"/{VERSIONS[version]}"
    read_prepare, read_unprepare = messages.NodePrepareResourcesRequest, messages.NodeUnprepareResourcesRequest
    return {
        f"{path}/NodePrepareResources": RpcMethod(prepare, read_prepare.FromString, PREPARES),
        f"{path}/NodeUnprepareResources": RpcMethod(unprepare, read_unprepare.FromString, UNPREPARES),
    }
