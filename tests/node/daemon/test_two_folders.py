"""Two agents with one node's name and a folder each: one publishes, and the other one says why it does not."""

import json
import urllib.error
import urllib.request

import pytest

from dra_driver.base.names import NVIDIA_DRIVER
from dra_driver.hardware.facts import Facts
from dra_driver.hardware.port import Roots
from dra_driver.hardware.simulated import SimulatedHardware
from dra_driver.node.devices.build import build_inventory
from dra_driver.simulator.kubelet import EmbeddedKubelet
from dra_driver.simulator.store import SLICES
from tests.node.daemon.support.other_driver import claim, pod
from tests.support.agents.agent_process import NODE, stage
from tests.support.waiting import until

KEY = f"{NVIDIA_DRIVER}/agent"


@pytest.fixture
def here():
    with stage() as it:
        it.second = EmbeddedKubelet(it.folder / "two", it.api, node=NODE)
        it.second.start()
        try:
            yield it
        finally:
            it.second.stop()


def flags(kubelet):
    """Return the flags of an agent with a kubelet's folders."""
    return [
        *("--kubelet-registrar-directory-path", str(kubelet.registrar_dir)),
        *("--kubelet-plugins-directory-path", str(kubelet.plugins_dir)),
        *("--cdi-root", str(kubelet.cdi_dir), "--metrics-address", "127.0.0.1:0"),
    ]


def page(here, index, path):
    line = next(line for line in here.log(index).splitlines() if "status page open" in line)
    address = line.partition("address=")[2].split()[0]
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refusal:
        return refusal.code, refusal.read().decode()


def writers(here):
    marks = [json.loads(one["metadata"]["annotations"][KEY]) for one in here.api.items(SLICES)]
    return {mark["folder"] for mark in marks}


def holder(here):
    """Return a pod whose claim is allocated to a GPU of the second agent's."""
    gpu = SimulatedHardware("demo-h100", Roots(), node_name=NODE).discover().gpus[0]
    device = next(d.name for d in build_inventory(Facts("simulated", (gpu,))).devices if d.partition is None)
    claim(here, "held", device, pool=f"{NODE}/{NVIDIA_DRIVER}")
    return pod("held")


def test_the_agent_that_started_later_stops_publishing_and_names_the_other(here):
    one, two = (str(kubelet.plugins_dir / NVIDIA_DRIVER) for kubelet in (here.kubelet, here.second))
    here.start("simulated:dgx-h100", *flags(here.kubelet))
    until(lambda: len(here.devices()) == 8, "the first agent's devices")
    here.start("simulated:demo-h100", *flags(here.second))
    until(lambda: "api.another-agent" in here.log(1), "the second agent to stop publishing")
    until(lambda: len(here.devices()) == 8, "the first agent's devices again")
    assert writers(here) == {one}
    status, text = page(here, 1, "/readyz")
    assert status == 503
    assert f"folder {one}" in text
    until(lambda: page(here, 0, "/readyz")[0] == 200, "the first agent to be ready")
    assert "another agent publishes this pool" in here.log(0)
    assert f"folder {two}" in here.log(0)
    assert 'code="api.another-agent"' in page(here, 1, "/metrics")[1]
    here.second.wait_registered(NVIDIA_DRIVER)
    user = holder(here)
    here.second.prepare_pod(user)
    assert list(here.second.cdi_dir.glob("*claim*"))
    here.second.unprepare_pod(user)
    assert not list(here.second.cdi_dir.glob("*claim*"))
    versions = [one["metadata"]["resourceVersion"] for one in here.api.items(SLICES)]
    here.agents[0].kill()
    here.agents[0].wait()
    assert [one["metadata"]["resourceVersion"] for one in here.api.items(SLICES)] == versions
    for one in here.api.items(SLICES):  # as that agent's kubelet does
        here.api.request("DELETE", SLICES.path("", one["metadata"]["name"]))
    until(lambda: writers(here) == {two}, "the second agent to publish")
    until(lambda: page(here, 1, "/readyz")[0] == 200, "the second agent to be ready")


def test_the_later_of_two_agents_of_one_kubelet_leaves_the_slices_of_the_other_alone(here):
    here.start("simulated:dgx-h100", *flags(here.kubelet))
    until(lambda: len(here.devices()) == 8, "the first agent's devices")
    here.kubelet.wait_registered(NVIDIA_DRIVER)
    versions = [one["metadata"]["resourceVersion"] for one in here.api.items(SLICES)]
    elsewhere = ("--kubelet-plugins-directory-path", str(here.second.plugins_dir))
    here.start("simulated:demo-h100", *flags(here.kubelet), *elsewhere)
    until(lambda: "no device is published" in here.log(1), "the second agent to see the first")
    until(lambda: "role gained" in here.log(1), "the second agent's publisher")
    until(lambda: page(here, 1, "/readyz")[0] == 503, "the second agent to be not ready")
    assert f"folder {here.kubelet.plugins_dir / NVIDIA_DRIVER}" in page(here, 1, "/readyz")[1]
    assert [one["metadata"]["resourceVersion"] for one in here.api.items(SLICES)] == versions
    assert page(here, 0, "/readyz")[0] == 200
    here.end(here.agents[0])
    until(lambda: writers(here) == {str(here.second.plugins_dir / NVIDIA_DRIVER)}, "the second agent to take over")
    until(lambda: page(here, 1, "/readyz")[0] == 200, "the second agent to be ready")
