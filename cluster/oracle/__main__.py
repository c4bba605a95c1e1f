"""The oracle by hand: `python -m cluster.oracle record|search`.

`record` asks Kubernetes' own packages again and writes the recordings; `search` compares our verdicts with theirs on
new random cases, and prints the differences.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

from cluster.oracle import allocations, selectors
from cluster.oracle.deriving import deriving_world
from cluster.oracle.editions import SELECTOR_EDITIONS
from cluster.oracle.expressions import random_expressions
from cluster.oracle.oddities import odd_world
from cluster.oracle.ours import differs, our_selector_verdict
from cluster.oracle.outcomes import our_outcomes
from cluster.oracle.program import VERSIONS
from cluster.oracle.searches import random_search
from cluster.oracle.worlds import random_world

MAKERS: dict[str, Callable[[int], dict[str, Any]]] = {
    "allocation": random_world,
    "searches": random_search,
    "oddities": odd_world,
    "deriving": deriving_world,
}


def main() -> int:
    """Run one command; return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m cluster.oracle", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("record", help="record all verdicts anew")
    search = commands.add_parser("search", help="compare on new random cases")
    search.add_argument(
        "kind",
        choices=("selectors", *MAKERS),
        help="searches: long ones; oddities: odd worlds; deriving: derived attributes",
    )
    search.add_argument("--seed", type=int, required=True, help="another seed, other cases")
    search.add_argument("--count", type=int, default=1000, help="how many cases (default 1000)")
    options = parser.parse_args()
    if options.command == "record":
        selectors.record()
        allocations.record()
        return 0
    if options.kind == "selectors":
        return _search_selectors(options.seed, options.count)
    return _search_worlds(MAKERS[options.kind], options.seed, options.count)


def _search_selectors(seed: int, count: int) -> int:
    """Print each expression on which we differ; return 1 if there is one."""
    expressions, found = random_expressions(seed, count), Counter()
    for edition in SELECTOR_EDITIONS:
        for expression, theirs in zip(expressions, selectors.verdicts_of(expressions, edition), strict=True):
            ours = our_selector_verdict(expression, edition)
            kind = differs(theirs, ours)
            found[kind] += 1
            if kind:
                print(f"{kind} {edition}: {expression}\n   theirs {theirs}\n   ours {ours}")
    print(f"{sum(found.values())} verdicts: {found['verdict']} differ, {found['text']} in words", file=sys.stderr)
    return int(bool(found["verdict"]))


def _search_worlds(make: Callable[[int], dict[str, Any]], seed: int, count: int) -> int:
    """Print each of our outcomes that the allocator was never seen to have; return 1 if there is one."""
    worlds = [make(seed * 1_000_000 + number) for number in range(count)]
    found: Counter[str] = Counter()
    for version in VERSIONS:
        for number, (world, theirs) in enumerate(zip(worlds, allocations.outcomes_of(worlds, version), strict=True)):
            ours = our_outcomes(world, version) if theirs else {}
            for node, seen in theirs.items():
                found["all"] += 1
                if ours[node] not in seen:
                    found[version] += 1
                    where = f"{version}: world {seed * 1_000_000 + number} on {node}"
                    print(f"{where}\n   theirs {seen}\n   ours {ours[node]}")
    differing = found.total() - found["all"]
    print(f"{found['all']} outcomes: {differing} differ {dict(found)}", file=sys.stderr)
    return int(bool(differing))


if __name__ == "__main__":
    sys.exit(main())
