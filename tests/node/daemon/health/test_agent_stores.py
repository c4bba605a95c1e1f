"""Agents whose files can't be read at their start: what was out of service is not offered, and claims are served."""

import signal
import time

import pytest

from dra_driver.base.names import NVIDIA_DRIVER
from dra_driver.node.health.stored_health import RECORD, HealthStore
from dra_driver.tools.main import run
from tests.node.daemon.support.claims import claim
from tests.node.daemon.support.faulty_gpu import FAULTY, NAME, taints, write_profile
from tests.support.agents.agent_process import stage
from tests.support.kept_files import leave_hot_journal, locked
from tests.support.waiting import until

FLAGS = ["--mig=static", "--remediation=on", "--lease-namespace=default"]
OTHER, USED = "gpu-0000-43-00-0", "gpu-0000-52-00-0"


class Node:
    """A node with a GPU that waits for a person and another one that is cordoned, whose agent was killed."""

    def __init__(self, here, folder):
        self.here, self.profile = here, folder / "node.yaml"
        write_profile(self.profile)
        self.agent = self.start()
        until(lambda: len(here.devices()) == 8, what="devices")
        self.folder = here.kubelet.plugins_dir / NVIDIA_DRIVER
        self.where = ["--kubelet-plugins-directory-path", str(here.kubelet.plugins_dir)]
        write_profile(self.profile, recoveryAction=2, reset="nothing")
        until(lambda: 'reason="a reboot of the machine"' in here.log(), what="the request of a reboot")
        assert run(["remediation", "give-up", FAULTY, *self.where]) == 0
        assert run(["cordon", OTHER, "--reason", "noisy fan", *self.where]) == 0
        self.until_out_of_service()
        self.used = claim(here, USED)
        assert not isinstance(here.kubelet.wait_registered(NVIDIA_DRIVER).prepare([self.used])[self.used.uid], str)
        here.end(self.agent, signal.SIGKILL)
        write_profile(self.profile)
        store = HealthStore(self.folder)  # the fault is over, so that only what is on disk keeps the GPU out of service
        store.write({RECORD: {**store.read()[RECORD], "tracks": [], "sightings": []}})

    def start(self):
        return self.here.start(f"simulated:{self.profile}", *FLAGS)

    def is_offered(self, name):
        return name in self.here.devices() and not taints(self.here).get(name)

    def until_out_of_service(self):
        until(lambda: taints(self.here).get(NAME, {}).get("remediation") == "support", what="the escalated GPU")
        until(lambda: "cordoned" in taints(self.here).get(OTHER, {}), what="the cordoned GPU")

    def serves(self):
        """Return whether the claim of before is unprepared."""
        return self.here.kubelet.wait_registered(NVIDIA_DRIVER).unprepare([self.used]) == {self.used.uid: ""}

    def watch(self, seconds):
        """Fail if a device that was out of service is offered within these seconds."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            assert not self.is_offered(NAME)
            assert not self.is_offered(OTHER)
            time.sleep(0.05)


@pytest.fixture
def node(tmp_path):
    with stage("1.36") as here:
        yield Node(here, tmp_path)


@pytest.mark.parametrize("name", ["state.db"])
def test_a_file_that_is_locked_for_five_seconds_changes_nothing(node, name):
    before = (node.folder / name).stat().st_ino
    with locked(node.folder / name):
        node.start()
        until(lambda: "can't be read" in node.here.log(), what="the report")
        node.watch(5.0)
        assert node.serves()
    node.until_out_of_service()
    until(lambda: node.is_offered(USED), what="a healthy GPU")
    node.watch(0.5)
    assert (node.folder / name).stat().st_ino == before
    assert not list(node.folder.glob("*.damaged"))


@pytest.mark.parametrize(("name", "table"), [("remediation.db", "cases"), ("state.db", "documents")])
def test_a_hot_journal_of_a_killed_agent_is_undone(node, name, table):
    leave_hot_journal(node.folder / name, table)
    node.start()
    until(lambda: "role gained" in node.here.log(), what="the role")
    node.until_out_of_service()
    node.watch(1.0)
    assert not list(node.folder.glob("*.damaged"))


@pytest.mark.parametrize("name", ["remediation.db", "health.db", "cordons.json", "state.db"])
def test_a_file_that_can_not_be_read_at_all_is_left_alone_and_read_later(node, name):
    (node.folder / name).rename(node.folder / "kept")
    (node.folder / name).mkdir()
    node.start()
    until(lambda: "can't be read" in node.here.log(), what="the report")
    node.watch(3.0)
    assert node.serves()
    (node.folder / name).rmdir()
    (node.folder / "kept").rename(node.folder / name)
    node.until_out_of_service()
    until(lambda: node.is_offered(USED), what="a healthy GPU")


def test_all_gpus_are_examined_after_the_journal_was_damaged(node):
    (node.folder / "remediation.db").write_bytes((node.folder / "remediation.db").read_bytes()[:5000])
    node.start()
    until(lambda: taints(node.here).get(USED, {}).get("remediation") == "examined", what="the examination")
    assert node.serves()
    until(lambda: node.is_offered(USED) and node.is_offered(NAME), what="the return")
    assert not node.is_offered(OTHER)
    assert (node.folder / "remediation.db.damaged").exists()
    assert "ledger.remediation-damaged" in node.here.log()


def test_faults_are_found_again_after_the_health_store_was_damaged(node):
    write_profile(node.profile, recoveryAction=2, reset="nothing")
    (node.folder / "health.db").write_bytes(b"garbage" * 999)
    node.start()
    until(lambda: "role gained" in node.here.log(), what="the role")
    node.watch(3.0)
    until(lambda: "needs-reboot" in taints(node.here).get(NAME, {}), what="the fault")
    assert (node.folder / "health.db.damaged").exists()
