"""Advice on room: which running pods would have to move so that a subject that fits nowhere would fit.

In: a world, the rules that apply, a subject that fits on no node. Out: at most one sentence. Only a limited number of
moves is tried; `dra-driver simulate --defrag` tries more.
"""

from __future__ import annotations

from collections.abc import Iterator

from dra_driver.allocation.simulation.events import Job
from dra_driver.allocation.simulation.moves import ClusterState, JobMove, fewest_moves
from dra_driver.views.worlds.rules import AppliedRules
from dra_driver.views.worlds.scenario import running_jobs
from dra_driver.views.worlds.subjects import ExplainedSubject
from dra_driver.views.worlds.world import World

_MAX_TRIES = 100


def capacity_advice(world: World, rules: AppliedRules, subject: ExplainedSubject) -> Iterator[str]:
    """Yield where a subject would fit, and which pods would first have to move where."""
    running = running_jobs(world)
    if not running:
        return
    state = ClusterState(
        nodes=world.of("Node"),
        slices=world.of("ResourceSlice"),
        classes=world.of("DeviceClass"),
        held=world.allocated(),
        kubernetes=rules.kubernetes,
        gates=rules.gates,
    )
    job = Job(subject.name, (*subject.claims, *subject.allocated), subject.pod)
    found = fewest_moves(state, running, job, subject.allocated, max_tries=_MAX_TRIES)
    if found is not None:
        yield f"would fit on {found.node} if {'; '.join(map(_elsewhere, found.moves))}"


def _elsewhere(move: JobMove) -> str:
    place = f" on {move.target}" if move.target != move.source else ""
    return f"{move.job} were not on {', '.join(move.leaves)} but on {', '.join(move.gets)}{place}"
