"""The agent offers IMEX channel 0 where that is asked for: once, for any number of claims, or for one."""

import json

import pytest

from dra_driver.base.names import NVIDIA_DRIVER
from dra_driver.simulator.store import SLICES
from tests.support.agents.agent_process import stage
from tests.support.agents.allocated_claims import claim
from tests.support.waiting import until

CHANNEL = "imex-channel-0"


def published(here):
    slices = [s["spec"] for s in here.api.items(SLICES) if s["spec"]["driver"] == NVIDIA_DRIVER]
    return {d["name"]: d for s in slices for d in s.get("devices", ())}


def whole(here):
    return [d for name, d in published(here).items() if name.startswith("gpu-") and "-mig-" not in name]


@pytest.mark.parametrize(("version", "is_shared"), [("1.35", False), ("1.36", True)])
def test_a_node_in_a_fabric_offers_one_channel_and_a_claim_gets_its_node(version, is_shared):
    with stage(version) as here:
        here.start("simulated:gb200-tray", "--imex-channel=auto")
        until(lambda: CHANNEL in published(here) and whole(here), what="the channel beside the GPUs")
        device = published(here)[CHANNEL]
        assert device["attributes"]["type"] == {"string": "imex-channel"}
        assert device["attributes"]["nvlinkDomain"] == whole(here)[0]["attributes"]["nvlinkDomain"]
        assert device.get("allowMultipleAllocations", False) is is_shared
        plugin = here.kubelet.wait_registered(NVIDIA_DRIVER)
        ref = claim(here, CHANNEL)
        plugin.prepare([ref])
        (file,) = here.kubelet.cdi_dir.glob("*.json")
        document = json.loads(file.read_text())
        edits = [document.get("containerEdits") or {}, *(d["containerEdits"] for d in document["devices"])]
        nodes = [node["path"] for one in edits for node in one.get("deviceNodes", ())]
        assert nodes == ["/dev/nvidia-caps-imex-channels/channel0"], "nothing of the GPUs"
        assert plugin.unprepare([ref]) == {ref.uid: ""}


@pytest.mark.parametrize(("profile", "flags"), [("gb200-tray", ()), ("t4", ("--imex-channel=auto",))])
def test_no_channel_is_offered_without_the_flag_or_outside_of_a_fabric(profile, flags):
    with stage() as here:
        here.start(f"simulated:{profile}", *flags)
        until(lambda: published(here), what="the GPUs")
        assert CHANNEL not in published(here)
