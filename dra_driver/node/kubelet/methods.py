"""Health stream: reports the devices' health to the kubelet, which shows it in the status of pods.

In: the health of every device, read when it is needed. Out: the full list at once, again whenever it has changed, and
at least every ten seconds, because a kubelet considers a device's health unknown after thirty seconds without a report.
Messages stay the same while a fault lasts, because each change makes the kubelet write the status of a pod.

Source: kubelet's dra-health API, v1alpha1 (Kubernetes 1.34 to 1.39) and v1 (1.37 and newer), whose messages are equal.
"""

from __future__ import annotations

import enum
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import grpc

from dra_driver.base.telemetry.logs import fields, no_thread
from dra_driver.node._proto import dra_health_v1alpha1_pb2 as messages
from dra_driver.node._proto import dra_v1_pb2 as v1
from dra_driver.node._proto import dra_v1beta1_pb2 as v1beta1
from dra_driver.node._proto import plugin_registration_v1_pb2 as registration

# Methods: the plugin's services in the form that gRPC needs, each method with the threads that answer its calls.

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


HEALTH_VERSIONS = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")  # also the names of the gRPC services
RESEND_SECONDS = 10.0
TIMEOUT_SECONDS = 30  # seconds after which the kubelet should consider a device unknown
STREAMS = 4  # at the same time: a kubelet opens one, but those of its predecessors may end late
MESSAGE_CHARACTERS = 1024


class DeviceState(enum.IntEnum):
    """A device's health, with the numbers of the API."""

    UNKNOWN = 0
    HEALTHY = 1
    UNHEALTHY = 2


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """One device's health; `message` is shown in the status of the pods that use it."""

    pool: str
    device: str
    state: DeviceState
    message: str = ""


class ReportedHealth(Protocol):
    """The health of this node's devices."""

    def reports(self) -> tuple[DeviceReport, ...]:
        """Return the health of each device. Any number of threads may call this."""


class HealthStream:
    """Serves the reports of `health` to the kubelet."""

    def __init__(self, health: ReportedHealth) -> None:
        self._health = health
        self._changed = threading.Condition()
        self._revision, self._open = 0, 0
        self._is_over = False

    def changed(self) -> None:
        """Send the list again now, because something in it may have changed."""
        with self._changed:
            self._revision += 1
            self._changed.notify_all()

    def close(self) -> None:
        """End all streams."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def methods(self, service: str, pool: CallPool) -> grpc.GenericRpcHandler[Any, Any]:
        """Return the methods of one version of the service; `pool` has a thread for each stream and one to refuse."""
        handler = grpc.unary_stream_rpc_method_handler(
            answered_by(pool, self._watch),
            request_deserializer=messages.NodeWatchResourcesRequest.FromString,
            response_serializer=encode,
        )
        return grpc.method_handlers_generic_handler(service, {"NodeWatchResources": handler})

    def _watch(self, _request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        with self._changed:
            is_one_too_many = self._open >= STREAMS
            self._open += not is_one_too_many
        if is_one_too_many:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{STREAMS} health streams are open")
        if not context.add_callback(self._ended):
            self._ended()
        yield from self._lists(context)

    def _ended(self) -> None:
        # gRPC's own thread runs this. So a stream that is opened after this one was cancelled
        # finds a free place, however late the thread of the cancelled stream wakes up.
        with self._changed:
            self._open -= 1
            self._changed.notify_all()

    def _lists(self, context: grpc.ServicerContext) -> Iterator[Any]:
        while not self._is_over and context.is_active():
            with self._changed:
                sent = self._revision
            yield _encode(self._health.reports())
            with self._changed:
                self._changed.wait_for(partial(self._is_due, sent, context), RESEND_SECONDS)

    def _is_due(self, sent: int, context: grpc.ServicerContext) -> bool:
        return self._is_over or self._revision != sent or not context.is_active()


def _encode(reports: tuple[DeviceReport, ...]) -> Any:
    now = int(time.time())
    return messages.NodeWatchResourcesResponse(
        devices=[
            messages.DeviceHealth(
                device=messages.DeviceIdentifier(pool_name=report.pool, device_name=report.device),
                health=report.state.name,
                last_updated_time=now,
                health_check_timeout_seconds=TIMEOUT_SECONDS,
                message=report.message[:MESSAGE_CHARACTERS],
            )
            for report in reports
        ]
    )
