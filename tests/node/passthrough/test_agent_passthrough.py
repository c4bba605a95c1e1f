"""The agent with a file that names GPUs for virtual machines: what it offers before, while and after one is used."""

import json
from pathlib import Path

import pytest

from dra_driver.base.names import NVIDIA_DRIVER
from dra_driver.simulator.store import SLICES
from tests.support.agents.agent_process import stage
from tests.support.agents.allocated_claims import claim
from tests.support.waiting import until

GPU = "0000:1b:00.0"
WHOLE, PASSED = "gpu-0000-1b-00-0", "gpu-0000-1b-00-0-vfio"
FILE = f"version: passthrough/v1\ngpus:\n- devices: ['{GPU}']\n"


@pytest.fixture(params=["1.35", "1.36"])
def here(request):
    with stage(request.param) as here:
        yield here


def start(here, text=FILE, *flags):
    path = here.folder / "passthrough.yaml"
    path.write_text(text)
    return here.start("simulated:dgx-h100", f"--passthrough={path}", *flags)


def published(here):
    slices = [s["spec"] for s in here.api.items(SLICES) if s["spec"]["driver"] == NVIDIA_DRIVER]
    return {d["name"]: d for s in slices for d in s.get("devices", ())}


def of_gpu(here):
    return {name for name in published(here) if name.startswith(WHOLE)}


def has_counters(here):
    return any("sharedCounters" in s["spec"] for s in here.api.items(SLICES))


def test_a_gpu_goes_to_a_virtual_machine_and_comes_back_and_nothing_else_of_it_is_offered_meanwhile(here):
    start(here, FILE, "--device-metadata=on")
    until(lambda: PASSED in published(here) and here.has_whole_pool(), what="the GPU for virtual machines")
    passed = published(here)[PASSED]
    assert passed["attributes"]["type"] == {"string": "vfio"}
    assert passed["attributes"]["resource.kubernetes.io/pciBusID"] == {"string": GPU}
    assert {"uuid", "deviceID", "vendorID", "productName", "iommuFDEnabled"} <= passed["attributes"].keys()
    assert "addressableMemory" in passed["capacity"]
    assert "memory" not in passed["capacity"]
    if has_counters(here):  # both, and they exclude each other
        assert published(here)[WHOLE]["consumesCounters"] == passed["consumesCounters"]
        assert any("-mig-" in name for name in of_gpu(here))
    else:
        assert of_gpu(here) == {PASSED}
    plugin = here.kubelet.wait_registered(NVIDIA_DRIVER)
    ref = claim(here, PASSED)
    ((device,),) = plugin.prepare([ref]).values()
    assert device.cdi_ids
    (file,) = here.kubelet.cdi_dir.glob("*.json")
    document = json.loads(file.read_text())
    (node,) = (n for d in document["devices"] for n in d["containerEdits"]["deviceNodes"])
    assert node["path"].startswith("/dev/vfio/")
    (metadata,) = (m for d in document["devices"] for m in d["containerEdits"]["mounts"])
    assert metadata["containerPath"].startswith(
        "/var/run/kubernetes.io/dra-device-attributes/resourceclaims/claim/gpu/"
    )
    first = json.JSONDecoder().raw_decode(Path(metadata["hostPath"]).read_text())[0]
    (described,) = first["requests"][0]["devices"]
    assert described["attributes"]["resource.kubernetes.io/pciBusID"] == {"string": GPU}
    until(lambda: of_gpu(here) == {PASSED}, what="nothing else of the GPU")
    assert plugin.unprepare([ref]) == {ref.uid: ""}
    until(lambda: "GPU checked after a virtual machine had it" in here.log(), what="the check")
    until(lambda: (of_gpu(here) != {PASSED}) or not has_counters(here), what="the GPU offered again")
    until(lambda: PASSED in of_gpu(here), what="the GPU offered again")


def test_an_agent_that_restarts_while_a_virtual_machine_has_the_gpu_offers_it_as_before(here):
    agent = start(here)
    until(lambda: PASSED in published(here), what="the GPU for virtual machines")
    plugin = here.kubelet.wait_registered(NVIDIA_DRIVER)
    ref = claim(here, PASSED)
    plugin.prepare([ref])
    until(lambda: of_gpu(here) == {PASSED}, what="nothing else of the GPU")
    before = published(here)[PASSED]
    here.end(agent)
    start(here)
    until(lambda: here.kubelet.wait_registered(NVIDIA_DRIVER) is not plugin, what="a new registration")
    plugin = here.kubelet.wait_registered(NVIDIA_DRIVER)
    until(lambda: "hardware scanned" in here.log(), what="a look at the hardware")
    assert published(here)[PASSED] == before
    assert plugin.unprepare([ref]) == {ref.uid: ""}
    until(lambda: "GPU checked after a virtual machine had it" in here.log(), what="the check")


def test_an_agent_restarted_without_the_option_takes_the_gpu_back_and_offers_it_to_containers_alone(here):
    agent = start(here)
    until(lambda: PASSED in published(here), what="the GPU for virtual machines")
    plugin = here.kubelet.wait_registered(NVIDIA_DRIVER)
    ref = claim(here, PASSED)
    ((before,),) = plugin.prepare([ref]).values()
    here.end(agent)
    here.start("simulated:dgx-h100")
    until(lambda: here.kubelet.wait_registered(NVIDIA_DRIVER) is not plugin, what="a new registration")
    plugin = here.kubelet.wait_registered(NVIDIA_DRIVER)
    until(lambda: of_gpu(here) == {PASSED}, what="nothing else of the GPU")
    assert plugin.prepare([ref]) == {ref.uid: (before,)}
    (function,) = here.folder.rglob(f"bus/pci/devices/{GPU}")
    assert (function / "driver").readlink().name == "vfio-pci"
    assert plugin.unprepare([ref]) == {ref.uid: ""}
    assert (function / "driver").readlink().name == "nvidia"
    until(lambda: "GPU checked after a virtual machine had it" in here.log(), what="the check")
    until(lambda: WHOLE in published(here) and PASSED not in published(here), what="the GPU as before")


def test_a_gpu_for_virtual_machines_alone_is_offered_to_no_container(here):
    start(here, FILE + "  use: vm\n")
    until(lambda: PASSED in published(here), what="the GPU for virtual machines")
    assert of_gpu(here) == {PASSED}
    assert "consumesCounters" not in published(here)[PASSED]


def test_rules_for_other_nodes_are_ignored(here):
    start(here, FILE + "  nodes: ['other-*']\n")
    until(lambda: WHOLE in published(here), what="the GPUs")
    assert PASSED not in published(here)


def test_an_agent_whose_file_has_mistakes_lists_all_of_them_and_exits(here):
    agent = start(here, "version: passthrough/v1\ngpus:\n- devices: [gpu0, '0000:1b:00.0']\n  use: both\n  extra: 1\n")
    assert agent.wait(60) == 3
    text = here.log()
    assert all(word in text for word in ("gpu0", "'both'", "extra", "3 mistakes"))
