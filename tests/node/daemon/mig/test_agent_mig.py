"""The real agent process partitions GPUs through NVIDIA's library, and is killed inside of it meanwhile."""

import json
import re
import threading
import time
import urllib.request

import pytest

from dra_driver.base.names import NVIDIA_DRIVER
from dra_driver.node.slices.scanner import FULL_SECONDS
from tests.node.daemon.support.nvidia_machine import Machine, names
from tests.support.agents.agent_process import stage
from tests.support.fake_nvml import MIG_STEPS
from tests.support.waiting import until

pytestmark = pytest.mark.gcc


class MigMachine(Machine):
    """Two H100 GPUs that are partitioned on demand."""

    def start(self, *flags):
        environment = {
            "LD_LIBRARY_PATH": str(self.folder / "lib"),
            "FAKE_NVML_STATE": str(self.folder / "state"),
            "FAKE_NVML_PROC": self.node.roots.proc,
            "FAKE_NVML_LOG": str(self.folder / "calls"),
        }
        roots = [f"--sysfs-root={self.node.roots.sys}", f"--proc-root={self.node.roots.proc}"]
        agent = self.here.start(
            "auto", *roots, f"--dev-root={self.node.roots.dev}", "--mig=dynamic", *flags, environment=environment
        )
        until(lambda: "registered" in self.here.log(), "registration")
        self.plugin = self.here.kubelet.wait_registered(NVIDIA_DRIVER)
        return agent

    @property
    def partitions(self):
        """The first GPU's MIG mode, profile and start of its GPU instances, and number of compute instances."""
        gpu = self.state.read().gpus[0]
        return gpu.facts["mig_mode"], [(gi.profile_id, gi.start) for gi in gpu.gis], len(gpu.cis)

    @property
    def files(self):
        return list(self.here.kubelet.cdi_dir.glob("*.json"))


NO_PARTITIONS = ("0 0", [], 0)


@pytest.fixture
def machine(tmp_path):
    with stage("1.36") as here:
        yield MigMachine(here, tmp_path)


def part(machine, name="2g20gb-14-2"):
    return f"{names(machine.gpus)[0]}-mig-{name}"


def answered(machine, verb, claim):
    """Ask until the plugin answers without an error, as the kubelet does."""
    found = []

    def ask():
        try:
            (answer,) = getattr(machine.plugin, verb)([claim]).values()
        except Exception as error:  # the agent was killed under the call
            answer = f"{type(error).__name__}: {error}"
        found[:] = [answer]
        return answer == "" if verb == "unprepare" else not isinstance(answer, str)

    until(ask, f"{verb} to succeed")
    return found[0]


def test_whole_gpus_and_every_placement_are_published(machine):
    machine.start()
    until(lambda: len(machine.here.devices()) == 2 * 26, "2 whole GPUs and 50 partitions")
    assert part(machine) in machine.here.devices()


def test_a_claim_gets_the_nodes_of_its_partition_and_leaves_no_trace(machine):
    machine.start()
    until(lambda: part(machine) in machine.here.devices(), "partitions")
    claim = machine.claim(part(machine))
    answered(machine, "prepare", claim)
    assert machine.partitions == ("1 1", [(14, 2)], 1)
    (file,) = machine.files
    document = json.loads(file.read_text())
    nodes = [n["path"] for d in document["devices"] for n in d["containerEdits"]["deviceNodes"]]
    assert sum("nvidia-caps" in path for path in nodes) == 2
    answered(machine, "unprepare", claim)
    assert machine.partitions == NO_PARTITIONS
    assert machine.files == []


@pytest.mark.long
def test_partitions_made_and_destroyed_start_no_discovery(machine):
    began = time.monotonic()
    machine.start("--metrics-address=127.0.0.1:0")
    until(lambda: part(machine) in machine.here.devices(), "partitions")
    page = re.search(r"address=(127.0.0.1:\d+)", machine.here.log())[1]

    def scans():
        with urllib.request.urlopen(f"http://{page}/metrics", timeout=60) as answer:
            return float(re.search(r"^dra_driver_scans_total (\S+)$", answer.read().decode(), re.MULTILINE)[1])

    def regular():
        """Count the discoveries that a slow machine has seen since the second one because a minute had passed."""
        return (time.monotonic() - began) // FULL_SECONDS

    def seen():
        return machine.here.log().count("own changes of partitions read")

    until(lambda: scans() >= 2, "the discovery of what the opened library shows")
    for number in range(3):
        claim = machine.claim(part(machine), f"claim-{number}")
        for verb in ("prepare", "unprepare"):
            known = seen()
            answered(machine, verb, claim)
            until(lambda known=known: seen() > known, "the change to be known")
    assert scans() <= 2 + regular()


def test_two_claims_of_one_call_get_partitions_of_two_gpus_at_the_same_time(machine):
    """The first GPU hangs while it is partitioned; the other's partition is made in the meantime."""
    machine.start()
    until(lambda: part(machine) in machine.here.devices(), "partitions")
    with machine.state.change():
        machine.gpus[0].hang("nvmlDeviceCreateGpuInstanceWithPlacement")
    claims = [machine.claim(part(machine)), machine.claim(f"{names(machine.gpus)[1]}-mig-1g10gb-19-0", "other")]
    call = threading.Thread(target=machine.plugin.prepare, args=(claims,))
    call.start()
    until(lambda: [len(gpu.cis) for gpu in machine.state.read().gpus] == [0, 1], "the other GPU's partition")
    assert call.is_alive()
    with machine.state.change():
        machine.gpus[0].heal()
    call.join(60)
    assert [len(gpu.cis) for gpu in machine.state.read().gpus] == [1, 1]


def test_an_administrators_partition_is_published_and_outlives_claims(machine):
    (made,) = machine.gpus[0].partition("1g.10gb", 0)
    machine.node.add_mig_capability(0, made.gi, 12, {made.id: 13})
    machine.write()
    machine.start()
    by_hand = part(machine, "1g10gb-19-0")
    until(lambda: len(machine.here.devices()) == 27, "the partition, and all of the other GPU")
    assert by_hand in machine.here.devices()
    claim = machine.claim(by_hand)
    answered(machine, "prepare", claim)
    answered(machine, "unprepare", claim)
    assert machine.partitions == ("1 1", [(19, 0)], 1)


def test_a_gpu_instance_without_compute_instances_keeps_its_gpu_from_being_partitioned(machine):
    machine.gpus[0].partition("3g.40gb", 4)
    machine.gpus[0].cis.clear()
    machine.write()
    machine.start()
    until(lambda: len(machine.here.devices()) == 26, "the other GPU alone")
    whole, other = names(machine.gpus)
    assert not any(name.startswith(whole) for name in machine.here.devices())
    assert "an administrator has partitioned it (3g.40gb at slice 4)" in machine.here.log()
    claim = machine.claim(f"{other}-mig-1g10gb-19-0")
    answered(machine, "prepare", claim)
    answered(machine, "unprepare", claim)
    assert machine.partitions == ("1 1", [(9, 4)], 0), "the administrator's GPU instance was changed"


def test_a_gpu_with_a_mig_device_that_cannot_be_read_is_not_partitioned(machine):
    machine.gpus[0].partition("1g.10gb", 0)
    machine.gpus[0].fail("nvmlGpuInstanceGetInfo", 999)
    machine.write()
    machine.start()
    until(lambda: len(machine.here.devices()) == 26, "the other GPU alone")
    with machine.state.change():
        machine.gpus[0].heal()
    until(lambda: part(machine, "1g10gb-19-0") in machine.here.devices(), "the partition, once it can be read")
    assert len(machine.here.devices()) == 27


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("function", MIG_STEPS)
def test_an_agent_killed_in_the_library_leaves_no_trace_in_the_end(machine, function, when):
    machine.gpus[0].crash(function, when)
    machine.write()
    agent = machine.start()
    until(lambda: part(machine) in machine.here.devices(), "partitions")
    claim = machine.claim(part(machine))
    for verb in ("prepare", "unprepare"):
        try:
            getattr(machine.plugin, verb)([claim])
        except Exception:  # killed under the call
            assert agent.wait(60) == -9
            machine.start()
            answered(machine, verb, claim)
    assert agent.poll() == -9
    assert machine.partitions == NO_PARTITIONS
    assert machine.files == []
    until(lambda: len(machine.here.devices()) == 2 * 26, "everything offered again")


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_agent_killed_while_it_switches_mig_mode_off_leaves_it_off_in_the_end(machine, when):
    agent = machine.start()
    until(lambda: part(machine) in machine.here.devices(), "partitions")
    claim = machine.claim(part(machine))
    answered(machine, "prepare", claim)
    with machine.state.change():
        machine.gpus[0].crash("nvmlDeviceSetMigMode", when)
    with pytest.raises(Exception, match=r".+"):
        machine.plugin.unprepare([claim])
    assert agent.wait(60) == -9
    machine.start()
    answered(machine, "unprepare", claim)
    until(lambda: machine.partitions == NO_PARTITIONS, "MIG mode off")
    assert machine.files == []


def test_a_hanging_creation_delays_no_claim_of_another_gpu(machine):
    machine.start()
    until(lambda: part(machine) in machine.here.devices(), "partitions")
    with machine.state.change():
        machine.gpus[0].hang("nvmlDeviceCreateGpuInstanceWithPlacement")
    held = threading.Thread(target=machine.plugin.prepare, args=([machine.claim(part(machine))],))
    held.start()
    calls = machine.folder / "calls"
    until(lambda: calls.exists() and "CreateGpuInstanceWithPlacement" in calls.read_text(), "the creation begun")
    other = machine.claim(f"{names(machine.gpus)[1]}-mig-1g10gb-19-0", "other")
    answered(machine, "prepare", other)
    assert held.is_alive()
    assert [len(gpu.cis) for gpu in machine.state.read().gpus] == [0, 1]
    with machine.state.change():
        machine.gpus[0].heal()
    held.join(60)
    assert [len(gpu.cis) for gpu in machine.state.read().gpus] == [1, 1]
