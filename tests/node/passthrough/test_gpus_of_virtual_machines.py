"""GPUs that virtual machines have: health and telemetry don't miss them, and they are tested before their return."""

import pytest
import yaml

from dra_driver.base.names import NVIDIA_DRIVER
from dra_driver.simulator.store import SLICES
from tests.support.agents.agent_process import stage
from tests.support.agents.allocated_claims import claim
from tests.support.metering.metered_node import MeteredNode
from tests.support.waiting import until

WHOLE = "gpu-0000-1b-00-0"
FILE = "version: passthrough/v1\ngpus:\n- devices: [all]\n"


@pytest.fixture
def here():
    with stage("1.36") as here:
        (here.folder / "gpus.yaml").write_text(FILE)
        yield here


def profile(here, compute):
    """Make the tests of the node's GPU end as `compute` says."""
    gpu = {"pci": "0000:1b:00.0", "model": "l40s", "health": {"compute": compute, "recoveryAction": 0}}
    new = here.folder / "new"
    new.write_text(yaml.safe_dump({"about": "one", "driverVersion": "580.95.5", "gpus": [gpu]}))
    new.replace(here.folder / "profile.yaml")


def taints(here):
    slices = (one["spec"] for one in here.api.items(SLICES))
    return {d["name"]: [t["value"] for t in d.get("taints", ())] for s in slices for d in s.get("devices", ())}


def begun_tests(here):
    return here.log().count("testing a device")


def test_a_gpu_that_comes_back_is_validated_and_not_offered_until_that_has_ended(here):
    profile(here, "passes")
    here.start(f"simulated:{here.folder}/profile.yaml", f"--passthrough={here.folder}/gpus.yaml", "--validate=1")
    until(lambda: {WHOLE, f"{WHOLE}-vfio"} <= taints(here).keys(), what="the GPU after its first test")
    assert begun_tests(here) == 1
    plugin = here.kubelet.wait_registered(NVIDIA_DRIVER)
    for machine, compute in enumerate(("passes", "hangs")):
        ref = claim(here, f"{WHOLE}-vfio", name=f"c{machine}")
        plugin.prepare([ref])
        until(lambda: set(taints(here)) == {f"{WHOLE}-vfio"}, what="nothing else of the GPU")
        profile(here, compute)
        assert plugin.unprepare([ref]) == {ref.uid: ""}
        until(lambda machine=machine: begun_tests(here) == machine + 2, what="another test")
        if compute == "passes":
            until(lambda: WHOLE in taints(here), what="the GPU after its test")
    assert WHOLE not in taints(here)


def test_while_virtual_machines_have_every_gpu_there_are_no_measurements_no_ages_and_no_faults(here):
    node = MeteredNode(here, here.folder)
    names = ("gpu-0000-01-00-0", "gpu-0000-02-00-0")
    node.start(f"--passthrough={here.folder}/gpus.yaml")
    node.until(lambda: len(node.scrape("DCGM_FI_DEV_GPU_TEMP")) >= 1, "a temperature")
    plugin = here.kubelet.wait_registered(NVIDIA_DRIVER)
    refs = [claim(here, f"{name}-vfio", name=f"c{number}") for number, name in enumerate(names)]
    plugin.prepare(refs)
    node.until(
        lambda: set(taints(here)) == {f"{name}-vfio" for name in names}, "nothing but the virtual machines' devices"
    )
    node.until(lambda: not node.scrape("DCGM_FI_DEV_GPU_TEMP"), "no temperature of a GPU that is absent")
    node.until(lambda: not node.scrape("dra_telemetry_age_seconds"), "no age of measurements that are not taken")
    assert [one for one in node.scrape("dra_driver_faults") if one.value] == []
    assert all(found == [] for found in taints(here).values())
    assert plugin.unprepare(refs) == dict.fromkeys((ref.uid for ref in refs), "")
    node.until(lambda: node.scrape("DCGM_FI_DEV_GPU_TEMP"), "a temperature again")
