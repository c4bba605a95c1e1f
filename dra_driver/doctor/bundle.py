"""Support bundle: the report and the evidence behind it, redacted, as one tar.gz file.

In: report and evidence. Out: a file that only its owner can read. It contains only those pods that use claims or run
an agent.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Iterator
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from dra_driver import __version__
from dra_driver.doctor.cluster_evidence import ClusterEvidence, agents
from dra_driver.doctor.finding import DoctorReport
from dra_driver.doctor.node_evidence import NodeEvidence
from dra_driver.doctor.redaction import redacted
from dra_driver.model.errors import NodeError
from dra_driver.model.wire import Wire

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
        return [one for one in objects if (one.get("spec") or {}).get("resourceClaims") or _is_agent(one)]
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
