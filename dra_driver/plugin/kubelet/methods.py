"""Methods: the plugin's services in the form that gRPC needs, each method with the threads that answer its calls.

Generated service stubs are not used, because they would require a grpcio at least as new as their generator.
Source: grpcio, `grpc/_server.py`, `_select_thread_pool_for_behavior`, for the attribute `experimental_thread_pool`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol

import grpc

from dra_driver.plugin._proto.k8s.dra.v1 import api_pb2 as v1
from dra_driver.plugin._proto.k8s.dra.v1beta1 import api_pb2 as v1beta1
from dra_driver.plugin._proto.k8s.pluginregistration.v1 import api_pb2 as registration
from dra_driver.telemetry.logs import fields
from dra_driver.telemetry.thread_start import no_thread

log = logging.getLogger(__name__)

REGISTRATION_SERVICE = "pluginregistration.Registration"
PLUGIN_TYPE = "DRAPlugin"
# The versions that the registration lists, in the kubelet's order of preference, each with its gRPC service.
VERSIONS = {
    "v1.DRAPlugin": "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin",
    "v1beta1.DRAPlugin": "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin",
}
MESSAGES: Mapping[str, Any] = {"v1.DRAPlugin": v1, "v1beta1.DRAPlugin": v1beta1}


class CallPool(ThreadPoolExecutor):
    """The threads that answer one kind of calls; calls beyond their number wait for their turn.

    One thread is started at once, and the others when they are needed. If one of those can't be started, the call waits
    for a thread that there is. An exception would end the only thread with which gRPC accepts calls.
    """

    def __init__(self, size: int, name: str) -> None:
        """Start the first thread. Raises: NodeError("node.thread") if no thread can be started."""
        super().__init__(size, thread_name_prefix=name)
        try:
            super().submit(int).result()
        except RuntimeError as error:
            raise no_thread(f"{name}_0", error) from error

    def submit(self, function: Callable[..., Any], /, *args: Any, **more: Any) -> Future[Any]:
        """Have a function called by one of the threads. The future never ends if no thread could be started for it."""
        try:
            return super().submit(function, *args, **more)
        except RuntimeError as error:
            log.warning("no thread could be started for a further call", extra=fields(err=str(error)))
            return Future()


class RegistrationService(Protocol):
    """The service that the kubelet calls on the registration socket."""

    def get_info(self, request: registration.InfoRequest, context: grpc.ServicerContext) -> registration.PluginInfo:
        """Return the driver's name, the path of its DRA socket, and the versions that it serves."""

    def notify(
        self, request: registration.RegistrationStatus, context: grpc.ServicerContext
    ) -> registration.RegistrationStatusResponse:
        """Record whether the kubelet accepted the registration."""


class ClaimMethod(Protocol):
    """The function that answers a method of the DRA service."""

    def __call__(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Return the answer."""


def registration_methods(service: RegistrationService, pool: CallPool) -> grpc.GenericRpcHandler[Any, Any]:
    """Return the methods of the registration socket, answered by the threads of `pool`."""
    methods = {
        "GetInfo": _unary(service.get_info, registration.InfoRequest, pool),
        "NotifyRegistrationStatus": _unary(service.notify, registration.RegistrationStatus, pool),
    }
    return grpc.method_handlers_generic_handler(REGISTRATION_SERVICE, methods)


def dra_methods(
    version: str, prepare: ClaimMethod, unprepare: ClaimMethod, *, prepares: CallPool, unprepares: CallPool
) -> grpc.GenericRpcHandler[Any, Any]:
    """Return the methods of one version of the DRA service; its messages are those of `MESSAGES[version]`."""
    messages = MESSAGES[version]
    methods = {
        "NodePrepareResources": _unary(prepare, messages.NodePrepareResourcesRequest, prepares),
        "NodeUnprepareResources": _unary(unprepare, messages.NodeUnprepareResourcesRequest, unprepares),
    }
    return grpc.method_handlers_generic_handler(VERSIONS[version], methods)


def answered_by(pool: CallPool, answer: Callable[..., Any]) -> Callable[..., Any]:
    """Return `answer` in the form in which gRPC has it called by the threads of `pool`."""
    answer = partial(answer)
    answer.experimental_thread_pool = pool  # type: ignore[attr-defined]
    return answer


def encode(message: Any) -> bytes:
    """Return a message's bytes."""
    encoded: bytes = message.SerializeToString()
    return encoded


def _unary(answer: Callable[..., Any], request: Any, pool: CallPool) -> grpc.RpcMethodHandler[Any, Any]:
    return grpc.unary_unary_rpc_method_handler(
        answered_by(pool, answer), request_deserializer=request.FromString, response_serializer=encode
    )
