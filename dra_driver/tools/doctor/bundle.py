"""Redaction: the parts of an object that may leave the cluster in a support bundle.

Pure. In: objects as the API server sends them. Out: copies with only the fields listed here, which leaves out
environment variables, arguments of workloads, addresses, annotations and managed fields. Serial numbers and the
parameters of other drivers are replaced.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from dra_driver import __version__
from dra_driver.base.errors import NodeError
from dra_driver.base.wire import Wire
from dra_driver.tools.doctor.evidence import ClusterEvidence, agents
from dra_driver.tools.doctor.finding import DoctorReport
from dra_driver.tools.doctor.node_evidence import NodeEvidence

REMOVED = "(removed)"
_METADATA = ("name", "namespace", "uid", "generation", "creationTimestamp", "deletionTimestamp")
_LABELS = ("nvidia.com/", "feature.node.kubernetes.io/", "resource.k8s.io/", "resource.kubernetes.io/",
           "app.kubernetes.io/", "kubernetes.io/arch", "kubernetes.io/os", "pod-security.kubernetes.io/")  # fmt: skip
_SERIALS = frozenset({"serial"})


def redacted(kind: str, wire: Wire, driver: str) -> Wire:
    """Return the part of an object that may be shown. `kind` is a key of `cluster_evidence.KINDS`."""
    shown: Wire = {"metadata": _metadata(wire["metadata"])}
    body = _BODIES[kind](wire, driver)
    return {**shown, **{key: value for key, value in body.items() if value}}


def _metadata(metadata: Mapping[str, Any]) -> Wire:
    labels = {name: value for name, value in (metadata.get("labels") or {}).items() if name.startswith(_LABELS)}
    owners = [{key: one.get(key) for key in ("kind", "name")} for one in metadata.get("ownerReferences") or ()]
    kept = {key: metadata[key] for key in _METADATA if key in metadata}
    return {**kept, **({"labels": labels} if labels else {}), **({"ownerReferences": owners} if owners else {})}


def _picked(wire: Mapping[str, Any] | None, *fields: str) -> Wire:
    return {key: (wire or {})[key] for key in fields if key in (wire or {})}


def _pod(wire: Wire, _driver: str) -> Wire:
    spec, status = wire.get("spec") or {}, wire.get("status") or {}
    containers = [_picked(container, "name", "resources") for container in spec.get("containers") or ()]
    states = [_picked(one, "name", "ready", "restartCount", "state") for one in status.get("containerStatuses") or ()]
    fields = ("phase", "conditions", "resourceClaimStatuses", "extendedResourceClaimStatus", "reason", "message")
    return {
        "spec": {**_picked(spec, "nodeName", "resourceClaims", "tolerations"), "containers": containers},
        "status": {**_picked(status, *fields), "containerStatuses": states},
    }


def _event(wire: Wire, _driver: str) -> Wire:
    fields = ("reason", "message", "count", "firstTimestamp", "lastTimestamp", "eventTime")
    return {
        **_picked(wire, *fields),
        "involvedObject": _picked(wire.get("involvedObject"), "kind", "name", "namespace"),
    }


def _node(wire: Wire, _driver: str) -> Wire:
    status = wire.get("status") or {}
    return {
        "spec": _picked(wire.get("spec"), "taints", "unschedulable"),
        "status": _picked(status, "allocatable", "nodeInfo", "conditions"),
    }


def _slice(wire: Wire, _driver: str) -> Wire:
    spec = dict(wire.get("spec") or {})
    spec["devices"] = [_device(device) for device in spec.get("devices") or ()]
    return {"spec": spec}


def _device(device: Wire) -> Wire:
    attributes = {
        name: {"string": REMOVED} if name.rpartition("/")[2] in _SERIALS else value
        for name, value in (device.get("attributes") or {}).items()
    }
    return {**device, "attributes": attributes}


def _with_configs(wire: Wire, driver: str) -> Wire:
    """Return spec and status without the parameters that are meant for other drivers."""
    return {key: _without_foreign(wire[key], driver) for key in ("spec", "status") if key in wire}


def _without_foreign(value: Any, driver: str) -> Any:
    if isinstance(value, list):
        return [_without_foreign(one, driver) for one in value]
    if not isinstance(value, dict):
        return value
    if "parameters" in value and value.get("driver") != driver:
        return {**value, "parameters": REMOVED}
    return {key: _without_foreign(one, driver) for key, one in value.items()}


def _daemonset(wire: Wire, _driver: str) -> Wire:
    template = ((wire.get("spec") or {}).get("template") or {}).get("spec") or {}
    containers = [_picked(container, "name", "image", "resources") for container in template.get("containers") or ()]
    return {"spec": {"containers": containers}, "status": wire.get("status")}


def _labels_only(_wire: Wire, _driver: str) -> Wire:
    return {}


def _whole_spec(wire: Wire, _driver: str) -> Wire:
    return _picked(wire, "spec")


_BODIES: dict[str, Callable[[Wire, str], Wire]] = {
    "nodes": _node,
    "namespaces": _labels_only,
    "pods": _pod,
    "events": _event,
    "slices": _slice,
    "classes": _with_configs,
    "claims": _with_configs,
    "templates": _with_configs,
    "policies": _whole_spec,
    "bindings": _whole_spec,
    "daemonsets": _daemonset,
}


# Support bundle: the report and the evidence behind it, redacted, as one tar.gz file.

MODE = 0o600
_ABOUT = f"""dra-driver {__version__}: support bundle.
report.json   what `dra-driver doctor` found, and what it could not see
cluster/      objects of the cluster; environment, arguments, addresses, annotations, serials are removed
node/         what the node itself shows
Names of pods, namespaces, nodes and classes are in it: read through it before you pass it on.
"""


def write_bundle(path: Path, report: DoctorReport, cluster: ClusterEvidence | None, node: NodeEvidence | None) -> None:
    """Write the bundle, replacing a file of that name; `cluster` or `node` is None if it was not examined.

    Raises: NodeError("node.bundle") if the file can't be written.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, MODE)
        os.fchmod(descriptor, MODE)  # a file that existed already may have been readable by others
        with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
            for name, text in _members(report, cluster, node):
                info = tarfile.TarInfo(f"dra-driver-bundle/{name}")
                data = text.encode()
                info.size, info.mode = len(data), MODE
                archive.addfile(info, io.BytesIO(data))
    except OSError as fault:
        raise NodeError("bundle", f"the bundle {path} can't be written: {fault.strerror}") from fault


def _members(
    report: DoctorReport, cluster: ClusterEvidence | None, node: NodeEvidence | None
) -> Iterator[tuple[str, str]]:
    yield "README.txt", _ABOUT
    yield "report.json", _json(report.document())
    if cluster is not None:
        yield "cluster/version.json", _json({"version": asdict(cluster.version), "kept": dict(cluster.kept)})
        for kind, objects in cluster.objects.items():
            yield f"cluster/{kind}.json", _json([redacted(kind, one, cluster.driver) for one in _chosen(kind, objects)])
    if node is not None:
        for name in ("kernel", "runtimes", "sockets", "rows", "left_out", "unseen"):
            yield f"node/{name}.json", _json(getattr(node, name))
        yield "node/hardware.json", _json(_without_serials(asdict(node.facts)) if node.facts else None)


def _chosen(kind: str, objects: list[Wire]) -> list[Wire]:
    """Return the objects of one kind that have to do with devices."""
    if kind == "daemonsets":
        return agents(objects)
    if kind == "pods":
        return [wire for wire in objects if (wire.get("spec") or {}).get("resourceClaims") or _is_agent(wire)]
    return objects


def _is_agent(pod: Wire) -> bool:
    return (pod["metadata"].get("labels") or {}).get("app.kubernetes.io/name") == "dra-driver"


def _without_serials(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_serials(one) for key, one in value.items() if key != "serial"}
    return [_without_serials(one) for one in value] if isinstance(value, (list, tuple)) else value


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return sorted(value) if isinstance(value, (set, frozenset)) else str(value)
