"""Which of two agents that publish one pool continues; the writes that each of them plans decide. No I/O."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from dra_driver.base.errors import ApiError
from dra_driver.node.slices.layout import WritePlan
from dra_driver.node.slices.writer import AgentMark, CompetingAgents, mark_of

DRIVER = "gpu.nvidia.com"
KEY = f"{DRIVER}/agent"
EARLY = AgentMark("one", "2026-11-22T10:00:00.000Z", "host-1", "/var/lib/kubelet/plugins/gpu.nvidia.com")
LATE = replace(EARLY, folder_id="two", started="2026-11-22T10:00:00.001Z", host="host-2")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class World:
    """One agent's competitors; `overwritten` is a plan to repair a slice that the other agent has just written."""

    def __init__(self, me: AgentMark) -> None:
        self.clock = Clock()
        self.competitors = CompetingAgents(me, driver=DRIVER, clock=self.clock)
        self.version = 0

    def overwritten(self, by: AgentMark) -> WritePlan:
        self.version += 1
        return WritePlan(1, updates=(slice_of(by, self.version),))

    def write(self) -> None:
        self.competitors.marked(slice_of(None, 0))


def slice_of(mark: AgentMark | None, version: int):
    annotations = {KEY: json.dumps(asdict(mark))} if mark else {}
    return {"metadata": {"name": "s", "resourceVersion": str(version), "annotations": annotations}, "spec": {}}


def test_the_later_agent_stops_at_the_second_change_within_ten_seconds():
    world = World(LATE)
    world.competitors.admit(world.overwritten(EARLY))  # slices found at the start were not changed while it ran
    world.write()
    world.competitors.admit(world.overwritten(EARLY))
    world.clock.now += 9
    with pytest.raises(ApiError, match=r"host-1 .*gpu.nvidia.com, running since 2026-11-22T10:00:00.000Z") as refusal:
        world.competitors.admit(world.overwritten(EARLY))
    assert refusal.value.code == "api.another-agent"


def test_the_earlier_agent_goes_on(caplog):
    world = World(EARLY)
    world.write()
    for _ in range(5):
        world.competitors.admit(world.overwritten(LATE))
    assert any("host-2" in record.getMessage() + str(vars(record)) for record in caplog.records)


def test_an_agent_goes_on_when_changes_are_further_apart():
    world = World(LATE)
    world.write()
    for _ in range(5):
        world.competitors.admit(world.overwritten(EARLY))
        world.clock.now += 11


def test_a_write_that_is_tried_again_counts_one_change_once():
    world = World(LATE)
    world.write()
    plan = world.overwritten(EARLY)
    for _ in range(5):
        world.competitors.admit(plan)


def test_an_agent_that_stopped_begins_again_when_no_slice_of_the_other_is_left():
    world = World(LATE)
    world.write()
    world.competitors.admit(world.overwritten(EARLY))
    for _ in range(2):
        with pytest.raises(ApiError):
            world.competitors.admit(world.overwritten(EARLY))
    world.clock.now += 3600
    with pytest.raises(ApiError):
        world.competitors.admit(world.overwritten(EARLY))
    world.competitors.admit(WritePlan(1, creates=(slice_of(None, 0),)))
    world.competitors.admit(world.overwritten(replace(EARLY, folder_id="three", started=LATE.started + "x")))


def test_instances_in_one_folder_and_users_are_no_competitors():
    world = World(LATE)
    world.write()
    for by in (replace(LATE, started=EARLY.started), None):
        for _ in range(5):
            world.competitors.admit(world.overwritten(by))
    assert not world.competitors.is_by_other_agent(slice_of(replace(LATE, host="pod-2"), 1))


def test_a_mark_keeps_other_annotations_and_can_be_read_back():
    wire = World(EARLY).competitors.marked({"metadata": {"name": "s", "annotations": {"a": "b"}}})
    assert wire["metadata"]["annotations"]["a"] == "b"
    assert mark_of(wire, KEY) == EARLY


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"folder_id": 1}',
        "[" * 1024,
        json.dumps({**asdict(EARLY), "host": "a\nb"}),
        json.dumps({**asdict(EARLY), "started": "now"}),
        json.dumps({**asdict(EARLY), "host": "x" * 2000}),
    ],
)
def test_a_malformed_mark_reads_as_none(text: str):
    assert mark_of({"metadata": {"annotations": {KEY: text}}}, KEY) is None
