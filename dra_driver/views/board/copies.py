"""Copies of pods and claims on a board, to simulate that the same arrives once more.

In: a board, and places such as `pod/team-a/train` or `claim/team-a/data=3`. Out: objects without a status, under new
names. A copy of a pod has copies of the claims that it names; claims from its templates are made as for any pod.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence

from dra_driver.model.errors import InputError
from dra_driver.model.wire import Wire
from dra_driver.views.board.board import Board
from dra_driver.views.fleet.profile_nodes import read_count

_KINDS = {"pod": "Pod", "claim": "ResourceClaim"}
_MAX = 1_000  # copies in one simulation


def copies(board: Board, places: Sequence[str]) -> Iterator[tuple[str, Wire]]:
    """Yield each copy with its kind. Raises: InputError for a place without an object, or too many copies."""
    left = _MAX
    for given in places:
        place, count = read_count(given)
        left -= count
        if left < 0:
            raise InputError("too-large", f"at most {_MAX:,} copies can be simulated")
        kind, namespace, name = _parts(place)
        found = board.find(_KINDS[kind], namespace, name)
        if found is None:
            raise InputError("missing", f"there is no {kind} {namespace}/{name}")
        for number in range(1, count + 1):
            ending = f"-copy-{number}"
            if kind == "pod":
                yield from _claims_of(board, found, ending)
            yield _KINDS[kind], _copy(found, ending)


def _parts(place: str) -> tuple[str, str, str]:
    parts = place.split("/")
    if len(parts) != 3 or parts[0] not in _KINDS:
        raise InputError("question", f"{place[:80]!r} is not pod/NAMESPACE/NAME or claim/NAMESPACE/NAME")
    return parts[0], parts[1], parts[2]


def _claims_of(board: Board, pod: Wire, ending: str) -> Iterator[tuple[str, Wire]]:
    """Yield copies of the claims that a pod names."""
    namespace = pod["metadata"].get("namespace") or "default"
    for entry in (pod.get("spec") or {}).get("resourceClaims") or ():
        claim = board.find("ResourceClaim", namespace, entry.get("resourceClaimName") or "")
        if claim is not None:
            yield "ResourceClaim", _copy(claim, ending)


def _copy(wire: Wire, ending: str) -> Wire:
    """Return a copy of an object without its status and node, and with a new name; a pod refers to copied claims."""
    metadata = {key: value for key, value in wire["metadata"].items() if key in {"namespace", "labels"}}
    spec = copy.deepcopy({key: value for key, value in (wire.get("spec") or {}).items() if key != "nodeName"})
    for entry in spec.get("resourceClaims") or ():
        if entry.get("resourceClaimName"):
            entry["resourceClaimName"] += ending
    made = {**metadata, "name": wire["metadata"]["name"] + ending}
    return {**{key: wire[key] for key in ("apiVersion", "kind") if key in wire}, "metadata": made, "spec": spec}
