"""The run of a scenario: the state in which it begins, and what happens with each event.

In: a scenario and the rules that apply. Out: an `EventOutcome` for each event, and the document.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dra_driver.allocation.simulation.events import EventOutcome, TimelineEvent
from dra_driver.allocation.simulation.moves import Rearrangement
from dra_driver.allocation.simulation.timeline import Timeline
from dra_driver.model.wire import Wire
from dra_driver.views.envelope import DocumentKind, OutputDocument, plain
from dra_driver.views.progress import NoProgress, ProgressLines, counted
from dra_driver.views.worlds.rules import AppliedRules
from dra_driver.views.worlds.scenario import Scenario, running_jobs
from dra_driver.views.worlds.world import World


@dataclass(frozen=True, slots=True)
class ScenarioRun:
    """A scenario with the rules that apply to it."""

    scenario: Scenario
    rules: AppliedRules

    @property
    def world(self) -> World:
        """The world of the scenario."""
        return self.scenario.world

    @property
    def is_empty(self) -> bool:
        """Whether the scenario has no claim, no pod and no workload, so that nothing can happen."""
        world = self.world
        there = (*world.of("Pod"), *world.of("ResourceClaim"), *world.workloads, *world.unknown_objects)
        return not there and not any(event.jobs or event.kind != "arrive" for event in self.scenario.events)

    @property
    def profiles(self) -> tuple[str, ...]:
        """The profiles of simulated nodes, as they were given."""
        return self.scenario.profiles

    def moments(
        self, timeline: Timeline, drained: Sequence[str] = (), lines: ProgressLines = NoProgress
    ) -> Iterator[EventOutcome]:
        """Run the events on a timeline, and yield the moment after each; `drained` nodes are drained first."""
        events = [TimelineEvent("drain", node) for node in drained] + list(self.scenario.events)
        for event in counted(events, "events", lines):
            yield timeline.apply(event)

    def beginning(self) -> Timeline:
        """Return the state of the world before the first event."""
        running = running_jobs(self.world)
        held_by_pods = {id(claim) for _, _, claims in running.values() for claim in claims}
        return Timeline(
            nodes=self.world.of("Node"),
            slices=self.world.of("ResourceSlice"),
            classes=self.world.of("DeviceClass"),
            kubernetes=self.rules.kubernetes,
            gates=self.rules.gates,
            held=[claim for claim in self.world.allocated() if id(claim) not in held_by_pods],
            running=running,
        )


def moments_document(moments: Sequence[EventOutcome], rearrangements: Sequence[Rearrangement]) -> OutputDocument:
    """Return the document of all moments, and of the moves that would make room for the jobs that wait at the end."""
    content = {"moments": [moment_document(moment) for moment in moments], "rearrangements": plain(rearrangements)}
    return OutputDocument(DocumentKind.SIMULATION, content)


def moment_document(moment: EventOutcome) -> Wire:
    """Return the document of a moment, with fractions rounded to three decimals."""
    event, usage = moment.event, moment.usage
    jobs = [job.name for job in event.jobs]
    return {
        "event": {"kind": event.kind, "target": None if jobs else event.target, "jobs": jobs},
        "message": event.sentence,
        "placed": plain(moment.placed),
        "waiting": plain(moment.waiting),
        "evicted": list(moment.evicted),
        "usage": {
            "devices": usage.devices,
            "held": round(usage.held, 3),
            "freeElsewhere": round(usage.free_elsewhere, 3),
        },
    }
