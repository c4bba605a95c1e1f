"""Worlds read from files or from a live cluster.

In: paths, or access to a cluster. Out: a `World` of wire objects, which records what could not be read. It only reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dra_driver.model.errors import InputError
from dra_driver.model.wire import Wire
from dra_driver.views.access import ClusterAccess
from dra_driver.views.objects.admission import refuse_inadmissible
from dra_driver.views.objects.documents import Document, read_documents
from dra_driver.views.objects.pod_references import bad_reference
from dra_driver.views.objects.shape_checker import ShapeChecker
from dra_driver.views.objects.strictness import checked, refuse_unknown, with_place
from dra_driver.views.objects.texts import shown
from dra_driver.views.progress import NoProgress, ProgressLines
from dra_driver.views.worlds.rules import ask_gates
from dra_driver.views.worlds.workloads import add_workload
from dra_driver.views.worlds.world import PATHS, World, with_defaults


@dataclass(frozen=True, slots=True)
class WantedObjects:
    """Which objects to read from a cluster.

    With `at_home`, only those of the namespace of `access`; with `gates`, also which fields the server keeps.
    """

    kinds: tuple[str, ...]
    at_home: bool = False
    gates: bool = False


EVERYTHING = WantedObjects(tuple(PATHS), gates=True)


def world_of_files(paths: Sequence[str], lines: ProgressLines = NoProgress) -> World:
    """Read all objects of some files. Raises: InputError."""
    world, checker = World(), ShapeChecker()
    for document in read_documents(paths, lines):
        if document.kind in world.objects:
            wire = checked(document, checker)
            refuse_inadmissible(document, wire)
            if document.kind == "Pod":
                _refuse_bad_reference(document, wire)
            if document.kind in {"ResourceClaim", "Pod"}:
                wire = with_defaults(wire)
            world.objects[document.kind].append(wire)
        else:
            refuse_unknown(document, document.wire)
            add_workload(world, document.wire, document.name)
    for wire in world.objects["ResourceClaim"]:
        default_requests(wire.get("spec") or {}, f"ResourceClaim {wire['metadata']['name']}")
    for wire in world.objects["ResourceClaimTemplate"]:
        title = f"ResourceClaimTemplate {wire['metadata'].get('name')}"
        default_requests((wire.get("spec") or {}).get("spec") or {}, title)
    return world


def _refuse_bad_reference(document: Document, pod: Wire) -> None:
    fault = bad_reference(pod, f"{shown(document.origin)}: Pod {document.name}")
    if fault is not None:
        raise with_place(document, fault)


def world_of_cluster(
    access: ClusterAccess, lines: ProgressLines = NoProgress, wanted: WantedObjects = EVERYTHING
) -> World:
    """Read the `wanted` objects of a cluster. What may not be read is listed in `World.unseen`. Raises: ApiError."""
    api, checker = access.connect(), ShapeChecker()
    try:
        version = api.server_version()
        world = World(kubernetes=f"{version.major}.{version.minor}", unseen=access.unseen)
        for kind in wanted.kinds:
            world.objects[kind] = access.read(api, kind, PATHS[kind], lines, at_home=wanted.at_home)
            for wire in world.objects[kind]:
                checker.check(kind, wire, "cluster")
        if wanted.gates:
            world.kept = ask_gates(api, version.minor, world.of("Node"))
        return world
    finally:
        api.close()


def default_requests(spec: Mapping[str, Any], title: str) -> None:
    """Set the defaults that the API server would set in a hand-written claim.

    Raises: InputError("input.object") for a count that it refuses.
    Source: Kubernetes, pkg/apis/resource/v1/defaults.go (a count of 0 becomes 1) and pkg/apis/resource/validation.
    """
    for request in (spec.get("devices") or {}).get("requests") or ():
        for one in [request.get("exactly"), *(request.get("firstAvailable") or ())]:
            if one is None:
                continue
            one["allocationMode"] = one.get("allocationMode") or "ExactCount"
            count = one.get("count") or 0
            if one["allocationMode"] == "ExactCount":
                one["count"] = count or 1
            if count < 0 or (count and one["allocationMode"] == "All"):
                why = "must be greater than zero" if count < 0 else "must not be given with allocationMode: All"
                where = f"{title}: request {request.get('name')}"
                raise InputError("object", f"{where}: count {count} {why}; the API server refuses it")
