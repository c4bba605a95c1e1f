"""Worlds as they are read: from files, or from a live cluster.

In: paths, or a kubeconfig. Out: a `World` of wire objects. It only reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dra_driver.documents.shared_values import SharedValues
from dra_driver.model.errors import InputError
from dra_driver.model.wire import Wire
from dra_driver.views.objects.api_versions import as_v1
from dra_driver.views.objects.documents import Document, read_documents, shown
from dra_driver.views.objects.shapes import ShapeChecker
from dra_driver.views.objects.strictness import refuse_unknown, with_place
from dra_driver.views.progress import NoProgress, ProgressLines
from dra_driver.views.worlds.rules import ask_gates
from dra_driver.views.worlds.workloads import add_workload
from dra_driver.views.worlds.world import PATHS, World, with_defaults

_PAGE = "500"


def world_of_files(paths: Sequence[str]) -> World:
    """Read all objects of some files. Raises: InputError."""
    world, checker = World(), ShapeChecker()
    for document in read_documents(paths):
        if document.kind in world.objects:
            wire = _checked(document, checker)
            if document.kind in {"ResourceClaim", "Pod"}:
                wire = with_defaults(wire)
            world.objects[document.kind].append(wire)
        else:
            add_workload(world, document.wire, document.name)
    for wire in world.objects["ResourceClaim"]:
        default_requests(wire.get("spec") or {})
    for wire in world.objects["ResourceClaimTemplate"]:
        default_requests((wire.get("spec") or {}).get("spec") or {})
    return world


def _checked(document: Document, checker: ShapeChecker) -> Wire:
    """Return a document in v1, when nothing is wrong with it. Raises: InputError, with line and column."""
    try:
        wire = as_v1(document.wire, f"{shown(document.origin)}: {document.kind} {document.name}")
        checker.check(document.kind, wire, shown(document.origin))
    except InputError as fault:
        raise with_place(document, fault) from None
    refuse_unknown(document, wire)
    return wire


def world_of_cluster(kubeconfig: str | None, lines: ProgressLines = NoProgress) -> World:
    """Read everything from a cluster. Raises: ApiError."""
    from dra_driver.kube.api import KubeApi
    from dra_driver.kube.credentials import load

    api = KubeApi(load(kubeconfig))
    try:
        version = api.server_version()
        world = World({kind: _list(api, kind, lines) for kind in PATHS}, f"{version.major}.{version.minor}")
        world.kept = ask_gates(api, version.minor, world.of("Node"))
        return world
    finally:
        api.close()


def _list(api: Any, kind: str, lines: ProgressLines) -> list[Wire]:
    """List all objects of a kind, page by page; values that their devices share are kept once."""
    found: list[Wire] = []
    token = ""
    line, values, checker = lines(f"{kind}s read", 0), SharedValues(), ShapeChecker()
    try:
        while True:
            query = {"limit": _PAGE, **({"continue": token} if token else {})}
            answer = api.request("GET", PATHS[kind], query=query, timeout_s=30.0)
            items = answer.get("items") or []
            for wire in items:
                if kind == "ResourceSlice":
                    values.share(wire)
                checker.check(kind, wire, "cluster")
            found += items
            line.tell(len(found))
            token = (answer.get("metadata") or {}).get("continue") or ""
            if not token:
                return found
    finally:
        line.close()


def default_requests(spec: Mapping[str, Any]) -> None:
    """Set the defaults that the API server would set in a hand-written claim."""
    for request in (spec.get("devices") or {}).get("requests") or ():
        for one in [request.get("exactly"), *(request.get("firstAvailable") or ())]:
            if one is not None:
                one.setdefault("allocationMode", "ExactCount")
                if one["allocationMode"] == "ExactCount":
                    one.setdefault("count", 1)
