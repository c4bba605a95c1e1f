"""The real agent offers, cuts and gives back GPUs of a simulated node; what it does depends on the server's gates."""

import pytest

from dra_driver.embedded.kinds import CLAIMS, SLICES
from dra_driver.embedded.plugin_calls import ClaimRef
from dra_driver.model.names import NVIDIA_DRIVER
from tests.support.agent_process import NODE, stage
from tests.support.waiting import until


def soon(condition, what):
    until(condition, timeout_s=20, what=what)


def claim(here, device: str, name: str = "c1") -> ClaimRef:
    """Make a claim that is allocated to one device."""
    request = {"name": "part", "exactly": {"deviceClassName": "x", "allocationMode": "ExactCount", "count": 1}}
    made = here.api.create(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"devices": {"requests": [request]}},
        }
    )
    result = {"request": "part", "driver": NVIDIA_DRIVER, "pool": f"{NODE}/{NVIDIA_DRIVER}", "device": device}
    made["status"] = {"allocation": {"devices": {"results": [result]}}}
    made = here.api.request("PUT", CLAIMS.path("default", name) + "/status", body=made)
    return ClaimRef("default", name, made["metadata"]["uid"])


@pytest.mark.parametrize(("version", "devices"), [("1.35", 8), ("1.36", 208)])
def test_gpus_are_cut_on_demand_where_the_server_counts(version, devices):
    with stage(version) as here:
        here.start("simulated:dgx-h100")
        soon(lambda: len(here.devices()) == devices, f"{devices} devices")
        assert len(here.api.items(SLICES)) == (9 if devices == 208 else 1)
        assert ("api server dropped fields" in here.log()) is (devices == 8)


def test_what_stands_is_all_that_is_published_where_that_is_asked_for():
    with stage("1.36") as here:
        here.start("simulated:dgx-h100", "--mig", "static")
        soon(lambda: len(here.devices()) == 8, "8 devices")


def test_a_partition_comes_and_goes_without_a_write_and_a_restart_finds_it_its_own():
    with stage("1.36") as here:
        agent = here.start("simulated:dgx-h100")
        plugin = here.kubelet.wait_registered(NVIDIA_DRIVER)
        soon(lambda: len(here.devices()) == 208, "208 devices")
        before = [s["metadata"]["resourceVersion"] for s in here.api.items(SLICES)]
        name = next(n for n in here.devices() if n.endswith("-mig-1g10gb-19-3"))
        ref = claim(here, name)
        (answer,) = plugin.prepare([ref]).values()
        assert not isinstance(answer, str), answer
        here.end(agent)
        here.start("simulated:dgx-h100")
        soon(lambda: "hardware scanned devices=208" in here.log(), "the partition taken for ours")
        plugin = here.kubelet.wait_registered(NVIDIA_DRIVER)
        soon(lambda: answers(here, plugin, ref), "unprepare")
        assert "partition destroyed" in here.log()
        assert "status=off" in here.log()
        assert [s["metadata"]["resourceVersion"] for s in here.api.items(SLICES)] == before


def answers(here, plugin, ref) -> bool:
    try:
        return plugin.unprepare([ref]) == {ref.uid: ""}
    except Exception:
        return here.kubelet.wait_registered(NVIDIA_DRIVER).unprepare([ref]) == {ref.uid: ""}


def test_a_geometry_is_applied_where_the_server_does_not_count():
    with stage("1.35") as here:
        here.start("simulated:dgx-h100", "--mig-geometry", "all-balanced")
        soon(lambda: len(here.devices()) == 32, "4 partitions of 8 GPUs")
