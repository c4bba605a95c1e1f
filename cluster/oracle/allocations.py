"""The questions about allocation, and what Kubernetes' own allocators answer.

In: worlds. Out: the outcomes in each minor version; several where the order of a Go map decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cluster.oracle import recordings
from cluster.oracle.deriving import deriving_world
from cluster.oracle.oddities import odd_world
from cluster.oracle.outcomes import LATE, Outcome, their_outcomes
from cluster.oracle.program import VERSIONS, ask
from cluster.oracle.searches import random_search
from cluster.oracle.worlds import random_world
from cluster.oracle.written_worlds import written_worlds

SEED, COUNT, SEARCHES, ODDITIES, DERIVING = 7_000_000, 400, 40, 300, 100
_NEWEST = frozenset({"DerivedAttributes", "OptionalNodeOperations"})
SECONDS, RUNS = 2.0, 60  # one run in eight swaps two pools

Outcomes = dict[str, list[Outcome]]


def is_judged(world: dict[str, Any], kubernetes: str) -> bool:
    """Return whether a world is put to a version of the allocator.

    1.34 crashes with consumable capacity on, and only 1.37 knows derived attributes and skipped operations.
    """
    if not _NEWEST.isdisjoint(world["features"]):
        return kubernetes == "1.37"
    return kubernetes != "1.34" or not world["features"]["ConsumableCapacity"]


def outcomes_of(worlds: Sequence[dict[str, Any]], kubernetes: str) -> list[Outcomes]:
    """Return the outcomes seen of each world; none where the allocator was too slow or crashed."""
    answers = ask(kubernetes, "allocation", {"seconds": SECONDS, "runs": RUNS}, list(worlds))
    found = []
    for world, answer in zip(worlds, answers, strict=True):
        seen = their_outcomes(answer) if is_judged(world, kubernetes) and "crash" not in answer else {}
        seen = {node: all_ for node, all_ in seen.items() if LATE not in all_ and "panic" not in all_[0]}
        found.append({node: sorted(all_, key=str) for node, all_ in seen.items()})
    return found


def record() -> None:
    """Record all versions."""
    named = written_worlds() | {f"random {number}": random_world(SEED + number) for number in range(COUNT)}
    named |= {f"random search {number}": random_search(SEED + number) for number in range(SEARCHES)}
    named |= {f"random oddity {number}": odd_world(SEED + number) for number in range(ODDITIES)}
    named |= {f"random deriving {number}": deriving_world(SEED + number) for number in range(DERIVING)}
    columns = [outcomes_of(list(named.values()), version) for version in VERSIONS]
    cases = zip(([name, world] for name, world in named.items()), zip(*columns, strict=True), strict=True)
    recordings.write(recordings.ALLOCATIONS, VERSIONS, cases)


def changed() -> list[str]:
    """Return the worlds for which the oracle now gives an answer that was never recorded."""
    found = []
    for version in VERSIONS:
        recorded = list(recordings.read(recordings.ALLOCATIONS, version))
        theirs = outcomes_of([world for (_, world), _ in recorded], version)
        for ((name, _), before), now in zip(recorded, theirs, strict=True):
            new = [node for node, seen in now.items() if not all(one in before[node] for one in seen)]
            found += [f"{version}: {name}: {node}" for node in new]
    return found
