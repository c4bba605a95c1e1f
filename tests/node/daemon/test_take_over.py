"""An agent that starts where another driver's claims are still held: what it publishes, and what it requests."""

import pytest

from dra_driver.base.names import NVIDIA_DRIVER
from dra_driver.simulator.store import CLAIMS, NODES, SLICES
from tests.node.daemon.support.other_driver import (
    Other,
    claim,
    pod,
)
from tests.support.agents.agent_process import NODE, stage
from tests.support.waiting import until

LISTED = ("--takeover-list-claims", "true")


@pytest.fixture
def here():
    with stage() as it:
        yield it


def asked(here, contains=""):
    """Return what agents have asked of the API server: method, path, and the selector or "watch"."""
    ours = (e for e in here.api.log.entries(contains=contains) if e.user_agent.startswith("dra-driver"))
    return [(e.method, e.path, "watch" if "watch" in e.query else e.query.get("fieldSelector", "")) for e in ours]


def test_devices_of_the_other_drivers_pods_are_withheld_until_they_end_and_no_claims_are_listed(here):
    other = Other(here)
    other.run("old", "gpu-2")
    other.run("nofile", "gpu-3", leaves_file=False)  # only the kubelet reports it
    other.leave()
    here.start("simulated:dgx-h100")
    until(lambda: len(here.devices()) == 6, "six of eight devices")
    assert "a device is held under a foreign name device=gpu-2 claim=default/old" in here.log()
    here.kubelet.wait_registered(NVIDIA_DRIVER)
    for name in ("old", "nofile"):
        here.kubelet.unprepare_pod(pod(name))
    until(lambda: len(here.devices()) == 8, "all devices, although the claims are still allocated")
    assert list(here.kubelet.cdi_dir.glob("*.yaml")) == []
    assert {path for _, path, _ in asked(here, "resourceclaims")} == {
        CLAIMS.path("default", name) for name in ("old", "nofile")
    }


def test_no_device_is_withheld_for_a_claim_of_the_other_drivers_pool_that_was_never_prepared(here):
    claim(here, "early", "gpu-2")
    here.start("simulated:dgx-h100")
    until(lambda: len(here.devices()) == 8, "all devices")
    assert asked(here, "resourceclaims") == []


def test_no_device_is_withheld_for_admin_access_but_one_for_a_claim_that_cannot_be_read(here):
    other = Other(here)
    other.run("monitor", "gpu-2", adminAccess=True)
    other.run("old", "gpu-3", leaves_file=False)
    other.leave()
    here.api.faults.fail_next(429, count=1000, method="GET", contains="claims/old", retry_after_s=60)
    here.start("simulated:dgx-h100")
    until(lambda: len(here.devices()) == 7, "seven of eight devices")
    assert len(asked(here, "claims/old")) == 1, "the agent did not wait as long as the server asked"


@pytest.mark.parametrize(("flags", "held"), [((), 1), (LISTED, 2)], ids=["not listed", "listed"])
def test_claims_are_found_in_files_or_in_the_cluster_if_the_kubelet_does_not_report_them(here, flags, held):
    other = Other(here)
    other.run("old", "gpu-2")
    other.run("nofile", "gpu-3", leaves_file=False)
    other.leave()
    here.kubelet.resources.lists_claims = False
    here.start("simulated:dgx-h100", *flags)
    until(lambda: len(here.devices()) == 8 - held, "the free devices")
    lists = [one for one in asked(here) if one[1] == CLAIMS.path()]
    assert len(lists) == (1 if flags else 0)


@pytest.mark.long
def test_a_kubelet_that_does_not_answer_delays_the_first_slice_but_not_for_ever(here):
    other = Other(here)
    other.run("old", "gpu-2")
    other.leave()
    here.kubelet.resources.stop()
    here.start("simulated:dgx-h100")
    until(lambda: len(here.devices()) == 7, "the devices that no file names")
    assert "the kubelet does not report claims" in here.log()
    here.kubelet.resources.start()


def test_a_start_takes_few_requests_however_many_claims_the_cluster_has(here):
    """At most 12 requests, the writes of its slices included, and none for claims that the ledger contains."""
    for index in range(300):
        claim(here, f"far-{index}", "gpu-0", pool="node-7")
    first = here.start("simulated:dgx-h100")
    here.kubelet.wait_registered(NVIDIA_DRIVER)
    until(lambda: len(here.devices()) == 8, "eight devices")
    names = here.devices()
    for index, device in enumerate(names[:4]):
        claim(here, f"own-{index}", device, pool=f"{NODE}/{NVIDIA_DRIVER}")
        here.kubelet.prepare_pod(pod(f"own-{index}"))
    assert here.end(first) == 0
    here.api.log.clear()
    here.start("simulated:dgx-h100")
    here.kubelet.wait_registered(NVIDIA_DRIVER)
    selector = f"spec.nodeName={NODE},spec.driver={NVIDIA_DRIVER}"
    until(lambda: any(what == "watch" for _, _, what in asked(here)), "a watch")
    until(lambda: any(path == "/version" for _, path, _ in asked(here)), "the version")
    requests = asked(here)
    assert sorted(set(requests)) == sorted(
        {
            ("GET", NODES.path("", NODE), ""),
            ("GET", "/version", ""),
            ("GET", SLICES.path(), selector),
            ("GET", SLICES.path(), "watch"),
            *(one for one in requests if one[0] == "POST"),
        }
    )
    assert len(requests) <= 12
    assert not any(path == CLAIMS.path() for _, path, _ in requests)
