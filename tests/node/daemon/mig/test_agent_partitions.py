"""The real agent offers and partitions GPUs of a simulated node; what it offers depends on the server's gates."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from dra_driver.base.names import NVIDIA_DRIVER
from dra_driver.simulator.store import CLAIMS, EVENTS, SLICES
from tests.node.daemon.support.claims import claim
from tests.support.agents.agent_process import stage
from tests.support.waiting import until

LISTED = ("--takeover-list-claims", "true")


@pytest.mark.parametrize(("version", "devices"), [("1.35", 8), ("1.36", 208)])
def test_partitions_are_offered_on_demand_where_the_server_keeps_counters(version, devices):
    with stage(version) as here:
        here.start("simulated:dgx-h100")
        until(lambda: len(here.devices()) == devices, f"{devices} devices")
        assert len(here.api.items(SLICES)) == (9 if devices == 208 else 1)
        assert ("the API server dropped fields" in here.log()) is (devices == 8)
        here.kubelet.wait_registered(NVIDIA_DRIVER)


def test_no_placements_are_published_with_mig_static():
    with stage("1.36") as here:
        here.start("simulated:dgx-h100", "--mig", "static")
        until(lambda: len(here.devices()) == 8, "8 devices")


def test_a_partition_is_made_and_destroyed_without_a_write_even_by_a_restarted_agent():
    with stage("1.36") as here:
        agent = here.start("simulated:dgx-h100")
        plugin = here.kubelet.wait_registered(NVIDIA_DRIVER)
        until(lambda: len(here.devices()) == 208, "208 devices")
        before = [s["metadata"]["resourceVersion"] for s in here.api.items(SLICES)]
        name = next(n for n in here.devices() if n.endswith("-mig-1g10gb-19-3"))
        ref = claim(here, name)
        (answer,) = plugin.prepare([ref]).values()
        assert not isinstance(answer, str), answer
        here.end(agent)
        here.start("simulated:dgx-h100")
        until(lambda: "hardware scanned devices=208" in here.log(), "the partition recognised as the agent's own")
        plugin = here.kubelet.wait_registered(NVIDIA_DRIVER)
        until(lambda: answers(here, plugin, ref), "unprepare")
        until(lambda: "partition destroyed and MIG mode switched off" in here.log(), "a log line, after the answer")
        assert [s["metadata"]["resourceVersion"] for s in here.api.items(SLICES)] == before


def answers(here, plugin, ref) -> bool:
    try:
        return plugin.unprepare([ref]) == {ref.uid: ""}
    except Exception:
        return here.kubelet.wait_registered(NVIDIA_DRIVER).unprepare([ref]) == {ref.uid: ""}


def test_a_geometry_is_applied_where_the_server_keeps_no_counters():
    with stage("1.35") as here:
        here.start("simulated:dgx-h100", "--mig-geometry", "all-balanced")
        until(lambda: len(here.devices()) == 32, "4 partitions of 8 GPUs")


def test_an_event_says_why_nothing_is_partitioned_on_demand():
    with stage("1.35") as here:
        here.start("simulated:dgx-h100")
        until(lambda: len(here.devices()) == 8, "8 devices")
        until(lambda: here.api.items(EVENTS), "an event")
        (event,) = here.api.items(EVENTS)
        assert (event["reason"], event["type"]) == ("MigNotOnDemand", "Normal")
        assert "DRAPartitionableDevices" in event["message"]
        here.kubelet.wait_registered(NVIDIA_DRIVER)


@pytest.mark.parametrize(("version", "flags"), [("1.35", LISTED), ("1.36", ("--mig", "static", *LISTED))])
def test_a_placement_that_is_allocated_stays_published_and_is_prepared_where_others_are_withdrawn(version, flags):
    """When the scheduler chose, the gate was on or the flag was another; the claim is prepared only now.

    Only a list of the cluster's claims contains it, because the kubelet has not begun to prepare it.
    """
    with stage(version) as here:
        given = "gpu-0000-1b-00-0-mig-1g10gb-19-3"
        ref = claim(here, given)
        here.start("simulated:dgx-h100", *flags)
        until(lambda: len(here.devices()) == 8, "7 whole GPUs and the placement")
        assert given in here.devices()
        assert "gpu-0000-1b-00-0" not in here.devices()
        plugin = here.kubelet.wait_registered(NVIDIA_DRIVER)
        (answer,) = plugin.prepare([ref]).values()
        assert not isinstance(answer, str), answer
        assert plugin.unprepare([ref]) == {ref.uid: ""}
        until(lambda: "partition destroyed" in here.log(), "a log line, after the answer")
        here.api.request("DELETE", CLAIMS.path("default", "c1"))


def test_an_upgrade_to_on_demand_keeps_prepared_gpus_and_partitions():
    with stage("1.36") as here:
        agent = here.start("simulated:demo-h100", "--mig", "static")
        plugin = here.kubelet.wait_registered(NVIDIA_DRIVER)
        until(lambda: len(here.devices()) == 14, "14 devices")
        whole, part = "gpu-0000-1b-00-0", "gpu-0000-d1-00-0-mig-3g40gb-9-4"
        refs = [claim(here, whole, "whole"), claim(here, part, "part")]
        assert not any(isinstance(a, str) for a in plugin.prepare(refs).values())
        files = {path: path.read_bytes() for path in here.kubelet.cdi_dir.glob("*.json")}
        here.end(agent)
        here.start("simulated:demo-h100")
        until(lambda: len(here.devices()) == 164, "164 devices")
        assert {whole, part} <= set(here.devices())
        assert {path: path.read_bytes() for path in here.kubelet.cdi_dir.glob("*.json")} == files
        # The registration of the agent before may still be there, and its channel is closed with it.
        until(lambda: "registered with the kubelet" in here.log(), "the new agent's registration")
        plugin = here.kubelet.wait_registered(NVIDIA_DRIVER)
        # A scheduler that saw no counters may allocate devices that overlap: the later claim waits.
        inside = claim(here, f"{whole}-mig-1g10gb-19-0", "inside")
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(plugin.prepare, [inside])
            until(lambda: "device held by another claim, waiting" in here.log(), "that it waits")
            assert not waiting.done()
            assert {r.uid: "" for r in refs} == plugin.unprepare(refs)
            (answer,) = waiting.result(60).values()
        assert not isinstance(answer, str), answer
        assert plugin.unprepare([inside]) == {inside.uid: ""}
        assert list(here.kubelet.cdi_dir.glob("*.json")) == []
        assert {whole, part} <= set(here.devices())


def test_a_geometry_is_not_applied_where_gpus_are_partitioned_on_demand():
    with stage("1.36") as here:
        here.start("simulated:dgx-h100", "--mig-geometry", "all-balanced")
        until(lambda: "declared geometry not applied" in here.log(), "the line in the log")
        assert len(here.devices()) == 208
