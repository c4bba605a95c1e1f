"""Batch: one recorded allocation problem per line, for programs.

In: `{"id", "kubernetes", "input": {features, nodes, classes, slices, allocated, claims}}`. Out: `{"id", "nodes": {name:
{"ok", "results", "category", "error"}}}`.
"""

from __future__ import annotations

from dra_driver.allocation.allocator import Allocator
from dra_driver.allocation.features import Features
from dra_driver.model.errors import InputError
from dra_driver.model.wire import Wire

DEFAULT_KUBERNETES = "1.35"


def simulate_batch_line(line: Wire) -> Wire:
    """Solve one problem on each of its nodes.

    Raises:
        InputError: The line does not describe a problem.
    """
    given = line.get("input") if isinstance(line, dict) else None
    if not isinstance(given, dict):
        raise InputError("batch", "a batch line is an object with the key input", hint='{"id": …, "input": {…}}')
    features = Features.from_names(given["features"]) if given.get("features") is not None else None
    allocator = Allocator(
        slices=given.get("slices") or (),
        classes=given.get("classes") or (),
        allocated=given.get("allocated") or (),
        kubernetes=str(line.get("kubernetes") or DEFAULT_KUBERNETES),
        features=features,
    )
    pod = allocator.for_claims(given.get("claims") or ())
    nodes: Wire = {}
    for node in given.get("nodes") or ():
        outcome = pod.allocate(node)
        nodes[node["metadata"]["name"]] = {
            "ok": outcome.ok,
            "results": outcome.results,
            "category": str(outcome.category),
            "error": outcome.error,
        }
    return {"id": line.get("id"), "nodes": nodes}
