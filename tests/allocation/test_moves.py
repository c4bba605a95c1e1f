"""The fewest moves that make room for a waiting job."""

from __future__ import annotations

from typing import Any

from dra_driver.allocation.moves import Rearrangement, moves_for_waiting
from dra_driver.allocation.simulation import Job, Timeline, TimelineEvent
from tests.allocation.support import allocation_worlds as wire

PART, WHOLE = f'{wire.attribute("kind")} == "part"', f'{wire.attribute("kind")} == "whole"'


def job(name: str, selector: str, count: int = 1, pod: dict[str, Any] | None = None, shared: str = "") -> Job:
    return Job(name, (wire.claim(wire.request(count=count, selectors=[selector]), name=shared or name),), pod)


def cluster(*nodes: str, gpus: int = 2, parts: int = 2) -> Timeline:
    slices = [one for name in nodes for one in wire.partitioned(name, gpus, parts)]
    return Timeline(
        nodes=[wire.node(name) for name in nodes], slices=slices, classes=[wire.device_class()], kubernetes="1.36"
    )


def play(here: Timeline, *arrivals: Job, leave: tuple[str, ...] = ()) -> dict[str, Rearrangement | None]:
    """Let jobs arrive, let some of them leave, let the last job arrive; return what is proposed."""
    for one in arrivals[:-1]:
        here.apply(TimelineEvent("arrive", one.name, jobs=(one,)))
    for name in leave:
        here.apply(TimelineEvent("leave", name))
    here.apply(TimelineEvent("arrive", arrivals[-1].name, jobs=(arrivals[-1],)))
    return dict(moves_for_waiting(here))


def three_parts(**more: Any) -> list[Job]:
    """Return jobs of which two fill one GPU and the third has half of the next."""
    return [job(name, PART, **more) for name in ("one", "two", "three")]


def test_one_move_within_the_node_brings_two_halves_together() -> None:
    found = play(cluster("a"), *three_parts(), job("big", WHOLE), leave=("one",))["big"]
    assert found is not None
    (move,) = found.moves
    assert (found.node, found.devices) == ("a", ("gpu-0",))
    assert (move.job, move.source, move.target, move.leaves, move.gets) == ("two", "a", "a", ("gpu-0-1",), ("gpu-1-1",))


def test_a_waiting_job_fits_once_the_proposed_moves_are_made() -> None:
    here = cluster("a", "b", gpus=3, parts=3)
    jobs = [job(f"part-{number}", PART) for number in range(16)]
    gone = tuple(f"part-{number}" for number in (0, 3, 4, 7, 9, 12, 15))
    found = play(here, *jobs, job("big", WHOLE, 2), leave=gone)["big"]
    assert found is not None
    assert len(found.devices) == 2
    moved = {move.job for move in found.moves}
    assert moved <= here.running.keys()
    # The moved jobs leave, the waiting job is placed, and the moved jobs arrive again: all of them fit.
    for name in moved:
        here.apply(TimelineEvent("leave", name))
    assert "big" in here.running
    back = [one for one in jobs if one.name in moved]
    assert not here.apply(TimelineEvent("arrive", "back", jobs=tuple(back))).waiting


def test_the_node_that_needs_the_fewest_moves_is_proposed_whatever_the_order_of_nodes() -> None:
    here = cluster("a", "b", gpus=1, parts=3)
    jobs = [job(f"part-{number}", PART) for number in range(5)]  # three on a, two on b
    found = play(here, *jobs, job("big", WHOLE), leave=("part-0", "part-3"))["big"]
    assert found is not None
    assert (found.node, [move.job for move in found.moves]) == ("b", ["part-4"])
    assert found.moves[0].target == "a"


def test_nothing_is_proposed_if_a_moved_job_would_fit_nowhere() -> None:
    assert play(cluster("a", gpus=1), job("one", PART), job("big", WHOLE)) == {"big": None}


def test_a_job_of_a_daemonset_is_not_moved() -> None:
    owner = {"kind": "DaemonSet", "controller": True}
    pod = {"metadata": {"ownerReferences": [owner]}}
    assert play(cluster("a"), *three_parts(pod=pod), job("big", WHOLE), leave=("one",)) == {"big": None}


def test_jobs_that_share_a_claim_and_claims_of_no_job_are_not_moved() -> None:
    here = cluster("a")
    here.held = [wire.allocated(("a", "gpu-1-0"))]
    sharing = [job("one", PART, shared="common"), job("two", PART, shared="common")]
    assert play(here, *sharing, job("big", WHOLE)) == {"big": None}


def test_a_job_with_one_gpu_is_moved_to_make_room_for_a_job_with_two() -> None:
    slices = [wire.pool(name, [wire.gpu(f"gpu-{index}", kind="whole") for index in range(2)]) for name in ("a", "b")]
    here = Timeline(
        nodes=[wire.node("a"), wire.node("b")], slices=slices, classes=[wire.device_class()], kubernetes="1.36"
    )
    jobs = [job(name, WHOLE) for name in ("one", "two", "three")]
    found = play(here, *jobs, job("pair", WHOLE, 2), leave=("one",))["pair"]
    assert found is not None
    assert [(move.job, move.source, move.target) for move in found.moves] == [("two", "a", "b")]
