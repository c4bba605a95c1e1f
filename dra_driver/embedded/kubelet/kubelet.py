"""Kubelet: the DRA part of a kubelet, which registers plugins, and prepares and unprepares the claims of pods.

In: pods as the API has them, claims from the API, plugins on unix sockets. Out: what each container sees. It starts no
containers. Source: kubelet cm/dra (1.34 to 1.36).
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dra_driver.embedded.api.kinds import CLAIMS
from dra_driver.embedded.api.port import Api
from dra_driver.embedded.kubelet.claim_cache import CachedClaim, ClaimCache
from dra_driver.embedded.kubelet.container_view import ContainerView, resolve
from dra_driver.embedded.kubelet.plugin_calls import RPC_S, ClaimRef, Plugin
from dra_driver.embedded.kubelet.plugin_watcher import PluginWatcher
from dra_driver.embedded.kubelet.pod_resources import EmbeddedPodResources
from dra_driver.embedded.kubelet.slice_wiper import WIPE_AFTER_S, SliceWiper
from dra_driver.embedded.pod_claims import claim_name
from dra_driver.kube.paths import node_path
from dra_driver.model.errors import ApiError, NodeError, Retry
from dra_driver.model.wire import ClaimWire, Wire


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
