"""Worlds as they are read: from files, or from a live cluster.

In: paths, or a kubeconfig. Out: a `World` of wire objects. It only reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dra_driver.kube.api import KubeApi
from dra_driver.model.wire import Wire
from dra_driver.views.objects.documents import read_documents
from dra_driver.views.objects.shapes import ShapeChecker
from dra_driver.views.objects.strictness import checked, refuse_unknown
from dra_driver.views.progress import NoProgress, ProgressLines
from dra_driver.views.worlds.rules import ask_gates
from dra_driver.views.worlds.workloads import add_workload
from dra_driver.views.worlds.world import PATHS, World, with_defaults


def world_of_files(paths: Sequence[str], lines: ProgressLines = NoProgress) -> World:
    """Read all objects of some files. Raises: InputError."""
    world, checker = World(), ShapeChecker()
    for document in read_documents(paths, lines):
        if document.kind in world.objects:
            wire = checked(document, checker)
            if document.kind in {"ResourceClaim", "Pod"}:
                wire = with_defaults(wire)
            world.objects[document.kind].append(wire)
        else:
            refuse_unknown(document, document.wire)
            add_workload(world, document.wire, document.name)
    for wire in world.objects["ResourceClaim"]:
        default_requests(wire.get("spec") or {})
    for wire in world.objects["ResourceClaimTemplate"]:
        default_requests((wire.get("spec") or {}).get("spec") or {})
    return world


def world_of_cluster(kubeconfig: str | None, lines: ProgressLines = NoProgress) -> World:
    """Read everything from a cluster. Raises: ApiError."""
    from dra_driver.kube.credentials import load

    api = KubeApi(load(kubeconfig))
    try:
        version = api.server_version()
        world = World({kind: _list(api, kind, lines) for kind in PATHS}, f"{version.major}.{version.minor}")
        world.kept = ask_gates(api, version.minor, world.of("Node"))
        return world
    finally:
        api.close()


def _list(api: KubeApi, kind: str, lines: ProgressLines) -> list[Wire]:
    """List all objects of a kind, and check them. Raises: ApiError, InputError."""
    from dra_driver.views.fleet.cluster_lists import read_list

    found, checker = read_list(api, PATHS[kind], f"{kind}s read", lines), ShapeChecker()
    for wire in found:
        checker.check(kind, wire, "cluster")
    return found


def default_requests(spec: Mapping[str, Any]) -> None:
    """Set the defaults that the API server would set in a hand-written claim."""
    for request in (spec.get("devices") or {}).get("requests") or ():
        for one in [request.get("exactly"), *(request.get("firstAvailable") or ())]:
            if one is not None:
                one.setdefault("allocationMode", "ExactCount")
                if one["allocationMode"] == "ExactCount":
                    one.setdefault("count", 1)
