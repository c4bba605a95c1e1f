"""Evidence for the checks: a healthy cluster and a healthy node, to which each test adds its fault."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from dra_driver.hardware.facts import Facts
from dra_driver.hardware.nvidia.published import NvidiaGpu
from dra_driver.kube.api import ServerVersion
from dra_driver.node.devices.build import build_inventory
from dra_driver.node.devices.describing import device_wire
from dra_driver.node.kubelet.registration import RegisteredPlugin
from dra_driver.tools.doctor.evidence import ClusterEvidence, KernelDriver, LedgerRow, RuntimeConfig
from dra_driver.tools.doctor.node_evidence import EvidenceFolders, NodeEvidence, PluginSocket
from dra_driver.tools.world.access import PROBES

DRIVER = "gpu.nvidia.com"
POOL = f"n1/{DRIVER}"
GPUS = tuple(
    NvidiaGpu(uuid=f"GPU-{i}", pci_address=f"0000:0{i}:00.0", minor=i, memory_bytes=80 << 30, product_name="H100")
    for i in (1, 2)
)
FACTS = Facts(vendor="nvidia", gpus=GPUS, driver_version="580.95.5")


DEVICES = [device_wire(device) for device in build_inventory(FACTS).devices]


def wire(name: str, namespace: str = "", spec: Any = None, status: Any = None, **metadata: Any) -> dict[str, Any]:
    made = {"metadata": {"name": name, "uid": f"uid-{name}", **metadata}, "spec": spec or {}, "status": status or {}}
    if namespace:
        made["metadata"]["namespace"] = namespace
    return made


def node_wire(name: str = "n1", runtime: str = "containerd://2.1.4", **labels: str) -> dict[str, Any]:
    info = {"kubeletVersion": "v1.35.2", "containerRuntimeVersion": runtime}
    return wire(name, status={"nodeInfo": info}, labels=labels)


def slice_of(
    devices: list[Any], name: str = "s1", node: str = "n1", driver: str = DRIVER, **pool: Any
) -> dict[str, Any]:
    whole = {"name": f"{node}/{driver}", "generation": 1, "resourceSliceCount": 1, **pool}
    return wire(name, spec={"driver": driver, "nodeName": node, "pool": whole, "devices": devices})


def class_of(name: str, *expressions: str) -> dict[str, Any]:
    return wire(name, spec={"selectors": [{"cel": {"expression": one}} for one in expressions]})


def claim_of(name: str, *devices: str, pod: str = "", **spec: Any) -> dict[str, Any]:
    results = [{"request": "gpu", "driver": DRIVER, "pool": POOL, "device": one} for one in devices]
    status: dict[str, Any] = {"allocation": {"devices": {"results": results}}} if devices else {}
    if pod:
        status["reservedFor"] = [{"resource": "pods", "name": pod, "uid": f"uid-{pod}"}]
    return wire(name, "team", spec, status)


def request(device_class: str) -> dict[str, Any]:
    return {"requests": [{"name": "gpu", "exactly": {"deviceClassName": device_class}}]}


def pod_of(name: str, phase: str = "Running", node: str = "n1", claim: str = "", since: str = "") -> dict[str, Any]:
    spec: dict[str, Any] = {"nodeName": node} if node else {}
    status: dict[str, Any] = {"phase": phase}
    if claim:
        spec["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "t"}]
        status["resourceClaimStatuses"] = [{"name": "gpu", "resourceClaimName": claim}]
    if since:
        status["conditions"] = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": since}]
    return wire(name, "team", spec, status)


def policy() -> dict[str, list[Any]]:
    rules = {"resourceRules": [{"resources": ["resourceslices"]}]}
    return {
        "policies": [wire("agents", spec={"matchConstraints": rules})],
        "bindings": [wire("agents", spec={"policyName": "agents", "validationActions": ["Deny"]})],
    }


def cluster(**objects: list[Any]) -> ClusterEvidence:
    """A healthy cluster of one node; each keyword replaces the objects of one kind."""
    known: dict[str, list[Any]] = {
        "nodes": [node_wire()],
        "namespaces": [wire("team")],
        "pods": [],
        "events": [],
        "slices": [slice_of(DEVICES)],
        "classes": [class_of("gpu.nvidia.com", f'device.driver == "{DRIVER}"')],
        "claims": [],
        "templates": [],
        "daemonsets": [],
        **policy(),
    }
    kept = dict.fromkeys(PROBES, True)
    return ClusterEvidence(ServerVersion(1, 35, "v1.35.2"), DRIVER, {**known, **objects}, kept, rules_api="v1alpha3")


def node(**changes: Any) -> NodeEvidence:
    """A healthy node with two GPUs; each keyword replaces one thing."""
    folders = EvidenceFolders(
        Path("/var/run/cdi"), Path("/k/plugins_registry"), Path("/k/plugins"), Path("/k/device-plugins")
    )
    plugin = RegisteredPlugin("DRAPlugin", DRIVER, f"/k/plugins/{DRIVER}/dra.sock", is_marked=True)
    healthy = NodeEvidence(
        node="n1",
        driver=DRIVER,
        vendor="nvidia",
        kernel=KernelDriver(
            bound={gpu.pci_address: "nvidia" for gpu in GPUS},
            module_version="580.95.05",
            library_version="580.95.05",
            library_file="/usr/lib64/libnvidia-ml.so.1",
            sources=(),
            kernel="6.12.1",
            has_headers=False,
        ),
        folders=folders,
        runtimes=(RuntimeConfig("containerd", "/etc/containerd/config.toml", True, ("/etc/cdi", "/run/cdi")),),
        facts=FACTS,
        inventory=build_inventory(FACTS),
        left_out=(),
        sockets=(PluginSocket(f"/k/plugins_registry/{DRIVER}-reg.sock", plugin),),
        device_plugins=(),
        rows=(LedgerRow("uid-c", "team/c", "prepared", "boot-1", ("gpu-0000-01-00-0",), has_file=True),),
        ledger_fault="",
        cdi_uids=frozenset({"uid-c"}),
        boot_id="boot-1",
        unseen=(),
    )
    return replace(healthy, **changes)
