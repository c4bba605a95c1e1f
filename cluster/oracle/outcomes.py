"""Our outcomes of a world in the oracle's form, and when two outcomes are the same.

In: a world and a version, or the oracle's answers. Out: outcomes by node: the results, or why there are none.
"""

from __future__ import annotations

import json
import re
from typing import Any

from dra_driver.allocation.allocator import simulate_batch_line
from dra_driver.base.quantity import Quantity

Outcome = dict[str, Any]
LATE = {"late": True}
_CATEGORIES = (
    ("cel-compile-error", "CEL compile error|compile derived attribute"),
    ("cel-runtime-error", "CEL runtime error|evaluate derived attribute"),
    ("unknown-class", "could not retrieve device class"),
    ("too-many-results", "exceeds the claim limit|allocation max size exceeded|exceed the claim limit"),
    ("incomplete-pool-all", "is currently being updated"),
    ("invalid-pool-all", "asks for all devices, but resource pool .* is currently invalid|^pool .* is invalid"),
    ("invalid-pool", "invalid resource pools were encountered"),
    ("all-constraint-unsatisfied", "because a claim constraint would not be satisfied"),
    ("feature-disabled", "feature is disabled|empty constraint"),
    ("unsupported", "unsupported ResourceSlice.NodeSelector"),
    ("bad-capacity", "capacity request cannot be represented|capacity value is negative"),
)


def their_outcomes(answer: dict[str, list[Outcome]]) -> dict[str, list[Outcome]]:
    """Return what the oracle reported of each node, in the form that is recorded and compared."""
    return {node: [_theirs(one) for one in seen] for node, seen in answer.items()}


def _theirs(one: Outcome) -> Outcome:
    if "panic" in one or "late" in one:
        return {"panic": one["panic"]} if "panic" in one else LATE
    if "error" in one:
        return {"category": category(one["error"])}
    if one.get("results") is None:
        return {"category": "no-fit"}
    return {"results": comparable(one["results"])}


def category(text: str) -> str:
    """Return the category of an error text of the allocator."""
    return next((name for name, words in _CATEGORIES if re.search(words, text)), f"? {text}")


def our_outcomes(world: dict[str, Any], kubernetes: str) -> dict[str, Outcome]:
    """Return what our allocator answers for each node."""
    answer = simulate_batch_line({"kubernetes": kubernetes, "input": world})
    found = {}
    for node, one in answer["nodes"].items():
        if one["results"] is not None:
            found[node] = {"results": comparable(one["results"])}
        else:
            found[node] = {"category": one["category"]}
    return found


def comparable(results: list[Any] | None) -> Any:
    """Return results with share IDs in order of appearance and quantities in canonical form; None if there are none."""
    if results is None:
        return None
    copy = json.loads(json.dumps(results))
    names: dict[str, str] = {}
    for one in (one for result in copy for one in result["devices"].get("results", ())):
        if "shareID" in one:
            one["shareID"] = names.setdefault(one["shareID"], f"share-{len(names) + 1}")
        for name, text in one.get("consumedCapacity", {}).items():
            one["consumedCapacity"][name] = str(Quantity.parse(text))
    return copy
