from __future__ import annotations

from typing import Any

import pytest

from dra_driver.allocation.node_selector import only_node
from dra_driver.allocation.simulation import Job, Timeline, TimelineEvent
from dra_driver.allocation.usage import usage_of
from dra_driver.base.errors import InputError
from tests.allocation.support import allocation_worlds as wire


def two_nodes() -> Timeline:
    slices = [wire.pool(name, [wire.gpu(f"gpu-{index}") for index in range(2)]) for name in ("a", "b")]
    return Timeline(
        nodes=[wire.node("a"), wire.node("b")], slices=slices, classes=[wire.device_class()], kubernetes="1.36"
    )


def arrive(name: str, count: int = 1) -> TimelineEvent:
    return TimelineEvent("arrive", name, jobs=(Job(name, (wire.claim(wire.request(count=count), name=name),)),))


def places(timeline: Timeline) -> dict[str, str]:
    return {name: where for name, (_, where, _) in timeline.running.items()}


def test_a_job_that_does_not_fit_waits_until_another_leaves() -> None:
    here = two_nodes()
    for name in ("one", "two"):
        here.apply(arrive(name, 2))
    moment = here.apply(arrive("three", 2))
    assert [waiting.job for waiting in moment.waiting] == ["three"]
    assert "held by default/one" in moment.waiting[0].reason or "held by default/two" in moment.waiting[0].reason
    moment = here.apply(TimelineEvent("leave", "two"))
    assert [(one.job, one.node) for one in moment.placed] == [("three", "b")]
    assert not moment.waiting


def test_the_jobs_of_a_drained_node_are_placed_on_another() -> None:
    here = two_nodes()
    here.apply(arrive("one"))
    moment = here.apply(TimelineEvent("drain", "a"))
    assert moment.evicted == ("one",)
    assert places(here) == {"one": "b"}
    here.apply(TimelineEvent("undrain", "a"))
    here.apply(arrive("two"))
    assert places(here)["two"] == "a"


def test_a_lost_device_evicts_its_holder_and_can_be_restored() -> None:
    here = two_nodes()
    here.apply(arrive("one"))
    moment = here.apply(TimelineEvent("lose", "a/gpu-0"))
    assert moment.evicted == ("one",)
    assert moment.usage.devices == 3
    assert here.apply(TimelineEvent("restore", "a/gpu-0")).usage.devices == 4


def test_a_lost_device_returns_to_the_slice_of_its_driver() -> None:
    """The node's pool of another driver has a device of the same name, and comes first."""
    other = wire.pool("a", [wire.gpu("gpu-1")])
    other["spec"]["driver"] = "gpu.other.com"
    here = two_nodes()
    here.slices.insert(0, other)
    here.apply(TimelineEvent("lose", "a/gpu-0"))
    here.apply(TimelineEvent("restore", "a/gpu-0"))
    names = {one["spec"]["driver"]: [device["name"] for device in one["spec"]["devices"]] for one in here.slices[:2]}
    assert [sorted(found) for found in names.values()] == [["gpu-1"], ["gpu-0", "gpu-1"]]


def test_replacing_the_devices_of_a_node_evicts_the_jobs_whose_device_is_gone() -> None:
    here = two_nodes()
    here.apply(arrive("one"))
    moment = here.apply(TimelineEvent("replace", "a", slices=tuple(wire.partitioned("a", 1, 2))))
    assert moment.evicted == ()  # gpu-0 is still there
    moment = here.apply(TimelineEvent("replace", "a", slices=(wire.pool("a", [wire.gpu("other")]),)))
    assert moment.evicted == ("one",)


@pytest.mark.parametrize(
    "event",
    [
        TimelineEvent("leave", "x"),
        TimelineEvent("drain", "x"),
        TimelineEvent("lose", "a/x"),
        TimelineEvent("explode", "a"),
    ],
)
def test_an_event_of_an_unknown_kind_or_about_something_unknown_is_refused(event: TimelineEvent) -> None:
    with pytest.raises(InputError):
        two_nodes().apply(event)


def test_a_held_partition_counts_as_its_fraction_of_a_gpu() -> None:
    slices: list[Any] = wire.partitioned("a", 2, 4)
    usage = usage_of(slices, [wire.allocated(("a", "gpu-0-1"))])
    assert (usage.devices, usage.held, usage.share) == (2, 0.25, 0.125)


def test_free_devices_that_are_not_on_the_node_with_most_of_them_are_free_elsewhere() -> None:
    slices = [wire.pool(name, [wire.gpu("gpu-0"), wire.gpu("gpu-1")]) for name in ("a", "b")]
    assert usage_of(slices, []).free_elsewhere == 0.5
    assert usage_of(slices[:1], []).free_elsewhere == 0


def test_a_job_whose_selector_fails_waits_because_scheduling_is_blocked() -> None:
    here = two_nodes()
    failing = wire.claim(wire.request(selectors=[f"{wire.attribute('index')} == 7"]), name="odd")
    moment = here.apply(TimelineEvent("arrive", "odd", jobs=(Job("odd", (failing,)),)))
    assert moment.waiting[0].reason.startswith("scheduling is blocked")


def test_jobs_that_share_a_claim_get_its_device_together() -> None:
    here = two_nodes()
    shared = wire.claim(wire.request(), name="shared")
    jobs = tuple(Job(name, (shared,), {"metadata": {"name": name}}) for name in ("one", "two", "three"))
    moment = here.apply(TimelineEvent("arrive", "all", jobs=jobs))
    assert {(one.node, one.devices) for one in moment.placed} == {("a", ("gpu-0",))}
    assert moment.usage.held == 1
    here.apply(TimelineEvent("leave", "one"))
    assert here.apply(TimelineEvent("leave", "two")).usage.held == 1  # job three still has it
    assert here.apply(TimelineEvent("leave", "three")).usage.held == 0


def test_a_drain_moves_all_jobs_that_share_a_claim_to_one_other_device() -> None:
    here = two_nodes()
    shared = wire.claim(wire.request(), name="shared")
    here.apply(TimelineEvent("arrive", "all", jobs=(Job("one", (shared,)), Job("two", (shared,)))))
    moment = here.apply(TimelineEvent("drain", "a"))
    assert moment.evicted == ("one", "two")
    assert places(here) == {"one": "b", "two": "b"}
    assert moment.usage.held == 1


def test_a_drain_leaves_the_pods_of_a_daemonset() -> None:
    here = two_nodes()
    owners = [{"kind": "DaemonSet", "name": "monitor", "controller": True}]
    pod = {"metadata": {"name": "monitor-1", "ownerReferences": owners}}
    here.apply(TimelineEvent("arrive", "it", jobs=(Job("monitor-1", (wire.claim(wire.request(), name="m"),), pod),)))
    assert here.apply(TimelineEvent("drain", "a")).evicted == ()


def test_a_pod_goes_where_its_allocated_claim_is() -> None:
    here = two_nodes()
    holding = wire.allocated(("b", "gpu-1"), name="shared")
    holding["status"]["allocation"]["nodeSelector"] = only_node("b")
    here.held = [holding]
    here.apply(TimelineEvent("arrive", "one", jobs=(Job("one", (wire.claim(wire.request(), name="shared"),), {}),)))
    assert places(here) == {"one": "b"}
