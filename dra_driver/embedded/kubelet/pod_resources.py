"""Pod resources: the socket on which a kubelet reports which claims its pods' containers have.

In: the kubelet's pods, and the node's allocatable resources. Out: the answers of PodResources v1. `lists_claims` stands
for the gate KubeletPodResourcesDynamicResources. Source: kubelet podresources/v1, server_v1.go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from dra_driver.model.wire import Wire
from dra_driver.plugin._proto.k8s.podresources.v1 import api_pb2 as messages
from dra_driver.plugin.node_claims.pod_resources import SERVICE

_STOP_S = 1.0


class EmbeddedPodResources:
    """The server of PodResources.

    `pods` returns each pod with the claims of its containers, `allocatable` the node's `status.allocatable`.
    """

    def __init__(
        self,
        path: Path,
        *,
        pods: Callable[[], Sequence[tuple[Wire, Mapping[str, list[Wire]]]]],
        allocatable: Callable[[], Mapping[str, Any]],
    ) -> None:
        self._path, self._pods, self._allocatable = path, pods, allocatable
        self._server: grpc.Server | None = None
        self.lists_claims = True

    def start(self) -> None:
        """Listen at the path."""
        self._path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        self._server = grpc.server(ThreadPoolExecutor(2))
        self._server.add_generic_rpc_handlers((self._methods(),))
        self._server.add_insecure_port(f"unix:{self._path}")
        self._server.start()

    def stop(self) -> None:
        """Stop listening and remove the socket."""
        if self._server is not None:
            self._server.stop(_STOP_S).wait()
            self._server = None

    def _methods(self) -> grpc.GenericRpcHandler[Any, Any]:
        behaviours = {
            "List": (self._list, messages.ListPodResourcesRequest),
            "GetAllocatableResources": (self._offered, messages.AllocatableResourcesRequest),
        }
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                behaviour,
                request_deserializer=request.FromString,
                response_serializer=lambda message: message.SerializeToString(),
            )
            for name, (behaviour, request) in behaviours.items()
        }
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    def _list(self, _request: Any, _context: Any) -> messages.ListPodResourcesResponse:
        return messages.ListPodResourcesResponse(pod_resources=[self._pod(pod, used) for pod, used in self._pods()])

    def _pod(self, pod: Wire, used: Mapping[str, list[Wire]]) -> messages.PodResources:
        containers = [
            messages.ContainerResources(name=name, dynamic_resources=map(_claim, entries if self.lists_claims else ()))
            for name, entries in used.items()
        ]
        metadata = pod["metadata"]
        return messages.PodResources(name=metadata["name"], namespace=metadata["namespace"], containers=containers)

    def _offered(self, _request: Any, _context: Any) -> messages.AllocatableResourcesResponse:
        return messages.AllocatableResourcesResponse(devices=_devices(self._allocatable()))


def _claim(entry: Wire) -> messages.DynamicResource:
    devices = [
        messages.ClaimResource(
            driver_name=found["driverName"],
            pool_name=found["poolName"],
            device_name=found["deviceName"],
            share_id=found.get("shareID"),
        )
        for found in entry["claimResources"]
    ]
    return messages.DynamicResource(
        claim_name=entry["claimName"], claim_namespace=entry["claimNamespace"], claim_resources=devices
    )


def _devices(allocatable: Mapping[str, Any]) -> Iterator[messages.ContainerDevices]:
    for name, count in allocatable.items():
        if "/" in name and str(count).isdecimal():
            for index in range(int(count)):
                yield messages.ContainerDevices(resource_name=name, device_ids=[f"{name}-{index}"])
