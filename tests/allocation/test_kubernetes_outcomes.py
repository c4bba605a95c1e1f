"""The allocator against outcomes that were recorded from Kubernetes' own allocators, by version (`make verdicts`)."""

from __future__ import annotations

import pytest

from cluster.components import parts
from cluster.oracle import recordings
from cluster.oracle.allocations import is_judged
from cluster.oracle.outcomes import our_outcomes
from cluster.oracle.searches import random_search
from cluster.oracle.written_worlds import written_worlds
from dra_driver.allocation import search
from dra_driver.allocation.allocator import simulate_batch_line


@pytest.mark.parametrize("version", parts.VERSIONS)
def test_every_outcome_is_one_that_was_recorded_from_kubernetes(version: str) -> None:
    judged, differing = 0, []
    for (name, world), recorded in recordings.read(recordings.ALLOCATIONS, version):
        ours = our_outcomes(world, version) if recorded else {}
        judged += len(recorded)
        differing += [(name, node, seen, ours[node]) for node, seen in recorded.items() if ours[node] not in seen]
    assert judged > 200
    assert not differing


def test_the_recorded_allocators_are_those_of_the_lane() -> None:
    assert recordings.header(recordings.ALLOCATIONS)["packages"] == recordings.pins()


def test_1_34_with_consumable_capacity_is_not_judged() -> None:
    world = next(iter(written_worlds().values()))
    assert not is_judged(world, "1.34")
    assert our_outcomes(world, "1.34") == {"node-1": {"category": "not-judged"}}


def test_a_search_that_goes_on_is_named_undecided_once_its_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1_000_000))
    monkeypatch.setattr("dra_driver.allocation.search.time.thread_time", lambda: next(clock) * search.GIVE_UP_SECONDS)
    world = random_search(501_000_086)
    answer = simulate_batch_line({"kubernetes": "1.36", "input": world})["nodes"]["node-1"]
    assert (answer["category"], answer["error"]) == ("undecided", "no answer after 511 steps")


def test_what_does_not_fit_even_if_nothing_leaks_is_decided() -> None:
    assert our_outcomes(random_search(501_000_020), "1.34") == {"node-1": {"category": "no-fit"}}
