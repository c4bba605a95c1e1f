"""Kubelet: the DRA part of a kubelet, which registers plugins, and prepares and unprepares the claims of pods.

In: pods as the API has them, claims from the API, plugins on unix sockets. Out: what each container sees. It starts no
containers. Source: kubelet cm/dra (1.34 to 1.36).
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from dra_driver.base.errors import ApiError, NodeError, Retry
from dra_driver.base.wire import ClaimWire, Wire
from dra_driver.kube.paths import node_path
from dra_driver.node._proto import pod_resources_v1_pb2 as messages
from dra_driver.node.neighbours.pod_resources import SERVICE
from dra_driver.simulator.api_server import Api
from dra_driver.simulator.container_view import ContainerView, resolve
from dra_driver.simulator.foreign_plugin import WIPE_AFTER_S, SliceWiper
from dra_driver.simulator.plugin_watcher import RPC_S, ClaimRef, Plugin, PluginWatcher, ReportedDevice
from dra_driver.simulator.scheduler import claim_name
from dra_driver.simulator.store import CLAIMS

# Claim cache: what the kubelet has recorded of its pods' claims, in memory only.


@dataclass(slots=True)
class CachedClaim:
    """What the kubelet has recorded of a claim: its drivers, its pods' UIDs, and the prepared devices by driver."""

    ref: ClaimRef
    drivers: tuple[str, ...]
    pods: set[str] = field(default_factory=set)
    devices: dict[str, list[ReportedDevice]] = field(default_factory=dict)
    is_prepared: bool = False

    def devices_of(self, request: str) -> Iterator[ReportedDevice]:
        """Yield the devices that belong to a request ("" for all)."""
        for devices in self.devices.values():
            for device in devices:
                if not request or not device.request_names or request in device.request_names:
                    yield device


class ClaimCache:
    """The claims of one kubelet, by namespace and name. Every method may be called by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._claims: dict[tuple[str, str], CachedClaim] = {}

    def all(self) -> tuple[CachedClaim, ...]:
        """Return every claim."""
        with self._lock:
            return tuple(self._claims.values())

    def get(self, namespace: str, name: str) -> CachedClaim:
        """Return one claim. Raises: KeyError for a claim that is not recorded."""
        with self._lock:
            return self._claims[namespace, name]

    def add_pod(self, ref: ClaimRef, drivers: tuple[str, ...], pod: str) -> CachedClaim:
        """Record that the pod with this UID uses a claim.

        Raises: NodeError("node.claim") if an older claim of the same name is still recorded.
        """
        with self._lock:
            cached = self._claims.get((ref.namespace, ref.name))
            if cached is not None and cached.ref.uid != ref.uid:
                message = (
                    f"old resource claim with same name {ref.name} and different UID {cached.ref.uid} still exists"
                )
                raise NodeError("claim", message, retry=Retry.LATER)
            if cached is None:
                cached = self._claims[ref.namespace, ref.name] = CachedClaim(ref, drivers)
            cached.pods.add(pod)
            return cached

    def add_devices(self, claim: CachedClaim, driver: str, devices: Sequence[ReportedDevice]) -> None:
        """Record what a driver has prepared.

        The result of a repeated call is appended, as kubelets up to 1.36.3 do; those of 1.36.4 and 1.37 replace it.
        """
        with self._lock:
            claim.devices.setdefault(driver, []).extend(devices)

    def set_prepared(self, claims: Iterable[CachedClaim], *, is_prepared: bool) -> None:
        """Record whether all drivers of these claims have prepared them."""
        with self._lock:
            for claim in claims:
                claim.is_prepared = is_prepared

    def release(self, pod: str) -> list[CachedClaim]:
        """Remove a pod from the claims that other pods use too.

        Return the claims that no other pod uses; they stay recorded until they are removed.
        """
        with self._lock:
            mine = [claim for claim in self._claims.values() if pod in claim.pods]
            ending = [claim for claim in mine if claim.pods == {pod}]
            for claim in mine:
                if claim not in ending:
                    claim.pods.discard(pod)
        return ending

    def remove(self, claims: Iterable[CachedClaim]) -> None:
        """Forget claims."""
        with self._lock:
            for claim in claims:
                self._claims.pop((claim.ref.namespace, claim.ref.name), None)


# Pod resources: the socket on which a kubelet reports which claims its pods' containers have.

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
            driver_name=resource["driverName"],
            pool_name=resource["poolName"],
            device_name=resource["deviceName"],
            share_id=resource.get("shareID"),
        )
        for resource in entry["claimResources"]
    ]
    return messages.DynamicResource(
        claim_name=entry["claimName"], claim_namespace=entry["claimNamespace"], claim_resources=devices
    )


def _devices(allocatable: Mapping[str, Any]) -> Iterator[messages.ContainerDevices]:
    for name, count in allocatable.items():
        if "/" in name and str(count).isdecimal():
            for index in range(int(count)):
                yield messages.ContainerDevices(resource_name=name, device_ids=[f"{name}-{index}"])


class EmbeddedKubelet:
    """A kubelet for one node. Its folders below `root` are plugins_registry, plugins and cdi."""

    def __init__(
        self,
        root: Path,
        api: Api,
        *,
        node: str,
        wipes_slices: bool = True,
        wipe_after_s: float = WIPE_AFTER_S,
        rpc_timeout_s: float = RPC_S,
        static_cdi: Path | None = None,
    ) -> None:
        self.registrar_dir = root / "plugins_registry"
        self.plugins_dir = root / "plugins"
        self.cdi_dir = root / "cdi"
        self.node = node
        self._api = api
        self._wipes_slices = wipes_slices
        self._rpc_timeout_s = rpc_timeout_s
        self._cdi_folders = ([static_cdi] if static_cdi else []) + [self.cdi_dir]
        self._lock = threading.Lock()
        self._claims = ClaimCache()
        self._pods: dict[str, Wire] = {}
        self.plugins = PluginWatcher(self.registrar_dir)
        self._wiper = SliceWiper(api, node, self.plugins, wipe_after_s)
        self.resources = EmbeddedPodResources(
            root / "pod-resources/kubelet.sock", pods=self._resources_of_pods, allocatable=self._allocatable
        )

    def start(self) -> None:
        """Create the folders, delete this node's slices as a kubelet does when it starts, and look for plugins."""
        for folder in (self.registrar_dir, self.plugins_dir, self.cdi_dir):
            folder.mkdir(mode=0o750, parents=True, exist_ok=True)
        if self._wipes_slices:
            self._wiper.wipe_all()
        self.plugins.start()
        self.resources.start()
        self._wiper.start()

    def stop(self) -> None:
        """Stop; plugins keep running and prepared claims stay prepared."""
        self.plugins.stop()
        self.resources.stop()
        self._wiper.stop()
        # The kubelet's checkpoint does not record whether a claim is prepared.
        self._claims.set_prepared(self._claims.all(), is_prepared=False)

    def restart(self) -> None:
        """Stop and start: slices are deleted, plugins register again, and the next pod of a claim prepares it again."""
        self.stop()
        self.start()

    def wait_registered(self, driver: str, timeout_s: float = 30.0, *, instances: int = 1) -> Plugin:
        """Wait until a driver is registered. Raises: NodeError("node.not-registered") after `timeout_s` seconds."""
        return self.plugins.wait_for(driver, timeout_s, instances=instances)

    def prepare_pod(self, pod: Wire) -> None:
        """Prepare every claim of a pod that is not prepared yet, with one call to each driver, in random order.

        Raises: NodeError with the claim that can't be used and the reason; what succeeded stays recorded.
        """
        with self._lock:
            self._pods[pod["metadata"]["uid"]] = pod
        claims = [self._record_use(pod, claim) for claim in self._claims_of(pod)]
        by_driver: dict[str, list[CachedClaim]] = {}
        for claim in claims:
            for driver in [] if claim.is_prepared else claim.drivers:
                by_driver.setdefault(driver, []).append(claim)
        drivers = list(by_driver)
        random.shuffle(drivers)
        for driver in drivers:
            self._prepare(driver, by_driver[driver])
        self._claims.set_prepared(claims, is_prepared=True)

    def containers(self, pod: Wire) -> dict[str, ContainerView]:
        """Return what each container of a prepared pod sees.

        Raises: NodeError("node.cdi") where a container runtime would refuse a device.
        """
        return {
            container["name"]: resolve(self._ids(pod, container), self._cdi_folders)
            for container in [*(pod["spec"].get("initContainers") or []), *pod["spec"]["containers"]]
        }

    def unprepare_pod(self, pod: Wire) -> None:
        """Release the claims of a pod that has ended, and unprepare those that no other pod uses.

        Raises: NodeError if a driver is not registered or refuses; a real pod would then stay Terminating.
        """
        uid = pod["metadata"]["uid"]
        ending = self._claims.release(uid)
        by_driver: dict[str, list[CachedClaim]] = {}
        for claim in ending:
            for driver in claim.drivers:
                by_driver.setdefault(driver, []).append(claim)
        for driver, claims in by_driver.items():
            replies = self._plugin(driver).unprepare([claim.ref for claim in claims], self._rpc_timeout_s)
            for claim in claims:
                if error := replies[claim.ref.uid]:
                    raise _refused(driver, claim.ref, "NodeUnprepareResources", error)
        self._claims.remove(ending)
        with self._lock:
            self._pods.pop(uid, None)

    def cached_claims(self) -> tuple[CachedClaim, ...]:
        """Return what the kubelet has recorded of claims, as its checkpoint would hold it."""
        return self._claims.all()

    def pod_resources(self, pod: Wire) -> dict[str, list[Wire]]:
        """Return the dynamic resources of each container, as the PodResources API lists them."""
        answer: dict[str, list[Wire]] = {}
        for container in pod["spec"]["containers"]:
            entries = []
            for claim, request in self._used(pod, container):
                resources = [
                    {
                        "cdiDevices": [{"name": name} for name in device.cdi_ids],
                        "driverName": device.driver,
                        "poolName": device.pool,
                        "deviceName": device.device,
                        **({"shareID": device.share_id} if device.share_id else {}),
                    }
                    for device in claim.devices_of(request)
                ]
                ref = claim.ref
                entries.append({"claimName": ref.name, "claimNamespace": ref.namespace, "claimResources": resources})
            answer[container["name"]] = entries
        return answer

    def _resources_of_pods(self) -> list[tuple[Wire, dict[str, list[Wire]]]]:
        """Return each pod with its containers' resources, or with none if one of its claims is not known yet."""
        with self._lock:
            pods = tuple(self._pods.values())
        found = []
        for pod in pods:
            try:
                found.append((pod, self.pod_resources(pod)))
            except KeyError:
                found.append((pod, {}))
        return found

    def _allocatable(self) -> Wire:
        try:
            node = self._api.request("GET", node_path(self.node))
        except ApiError:
            return {}
        return (node.get("status") or {}).get("allocatable") or {}

    # -- the claims of a pod ------------------------------------------------------------------------------------------

    def _claims_of(self, pod: Wire) -> Iterator[ClaimWire]:
        """Yield the claims of a pod from the API after checking each. Raises: NodeError."""
        namespace, uid = pod["metadata"]["namespace"], pod["metadata"]["uid"]
        for entry in pod["spec"].get("resourceClaims") or []:
            name = claim_name(pod, entry)
            try:
                claim = self._api.request("GET", CLAIMS.path(namespace, name))
            except ApiError as fault:
                raise NodeError("claim", f"claim {namespace}/{name}: {fault.message}", retry=Retry.LATER) from fault
            owners = claim["metadata"].get("ownerReferences") or []
            if "resourceClaimTemplateName" in entry and all(owner["uid"] != uid for owner in owners):
                raise NodeError("claim", f"claim {namespace}/{name} was not made for pod {pod['metadata']['name']}")
            status = claim.get("status") or {}
            if all(user["uid"] != uid for user in status.get("reservedFor") or []):
                raise NodeError("claim", f"claim {namespace}/{name} is not reserved for pod {uid}")
            yield claim

    def _record_use(self, pod: Wire, claim: ClaimWire) -> CachedClaim:
        """Record that a pod uses a claim, before anything is prepared. Raises: NodeError."""
        metadata = claim["metadata"]
        ref = ClaimRef(metadata["namespace"], metadata["name"], metadata["uid"])
        results = claim["status"].get("allocation", {}).get("devices", {}).get("results") or []
        drivers = tuple(dict.fromkeys(result["driver"] for result in results))
        for driver in drivers:
            self._plugin(driver)
        return self._claims.add_pod(ref, drivers, pod["metadata"]["uid"])

    def _plugin(self, driver: str) -> Plugin:
        plugin = self.plugins.newest(driver)
        if plugin is None:
            raise NodeError("no-plugin", f"DRA driver {driver} is not registered", retry=Retry.LATER)
        return plugin

    def _prepare(self, driver: str, claims: Sequence[CachedClaim]) -> None:
        replies = self._plugin(driver).prepare([claim.ref for claim in claims], self._rpc_timeout_s)
        for claim in claims:
            reply = replies[claim.ref.uid]
            if isinstance(reply, str):
                raise _refused(driver, claim.ref, "NodePrepareResources", reply)
            self._claims.add_devices(claim, driver, reply)

    def _used(self, pod: Wire, container: Wire) -> Iterator[tuple[CachedClaim, str]]:
        """Yield the claims that a container refers to, each with the request that it names ("" for all)."""
        by_entry = {entry["name"]: entry for entry in pod["spec"].get("resourceClaims") or []}
        for use in (container.get("resources") or {}).get("claims") or []:
            claim = self._claims.get(pod["metadata"]["namespace"], claim_name(pod, by_entry[use["name"]]))
            yield claim, use.get("request", "")

    def _ids(self, pod: Wire, container: Wire) -> Iterator[str]:
        for claim, request in self._used(pod, container):
            for device in claim.devices_of(request):
                yield from device.cdi_ids


def _refused(driver: str, ref: ClaimRef, method: str, error: Any) -> NodeError:
    message = f"{method} failed for claim {ref.namespace}/{ref.name}: driver {driver}: {error}"
    return NodeError("plugin-refused", message, retry=Retry.LATER)
