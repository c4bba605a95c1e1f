"""Health from end to end: the real agent process, a fake library, the embedded API; from a fault to the reports."""

import json
import signal
import subprocess
import sys
import urllib.request

import pytest
import yaml

from dra_driver.base.names import NVIDIA_DRIVER
from dra_driver.hardware.simulated.profile import FOLDER
from dra_driver.simulator.store import EVENTS, SLICES
from tests.support.agents.agent_process import stage
from tests.support.fake_nvml import State, build, hgx_h100
from tests.support.nodes.fake_node import FakeNode
from tests.support.ports import free_port
from tests.support.waiting import until


def taints(here):
    """Return the taints of each published device that has any: key without domain -> (value, effect, time)."""
    slices = [s for s in here.api.items(SLICES) if s["spec"]["driver"] == NVIDIA_DRIVER]
    return {
        device["name"]: {
            taint["key"].rpartition("/")[2]: (taint.get("value", ""), taint["effect"], taint["timeAdded"])
            for taint in device["taints"]
        }
        for one in slices
        for device in one["spec"].get("devices", ())
        if device.get("taints")
    }


def versions(here):
    return {s["metadata"]["name"]: (s["metadata"]["resourceVersion"], s["spec"]["pool"]["generation"])
            for s in here.api.items(SLICES)}  # fmt: skip


class Machine:
    """Two H100 GPUs of the fake library that report their health, and the agents of their node."""

    def __init__(self, here, folder):
        self.here, self.folder = here, folder
        self.node = FakeNode(folder / "node", null_nodes=True)
        self.node.load_driver()
        build(folder / "lib")
        self.state = State(gpus=hgx_h100(2))
        for gpu in self.state.gpus:
            self.node.add_gpu(gpu.pci, gpu.minor)
            gpu.report_health(recovery_action=0, remap_pending=0, remap_failed=0)
        self.write()
        self.log = folder / "node/dev/kmsg"
        self.log.touch()
        self.calls = folder / "calls"

    def write(self):
        self.state.write(self.folder / "state")

    def start(self, *flags):
        roots = self.node.roots
        flags = [f"--sysfs-root={roots.sys}", f"--proc-root={roots.proc}", f"--dev-root={roots.dev}", *flags]
        environment = {
            "LD_LIBRARY_PATH": str(self.folder / "lib"),
            "FAKE_NVML_STATE": str(self.folder / "state"),
            "FAKE_NVML_LOG": str(self.calls),
        }
        agent = self.here.start("auto", *flags, environment=environment)
        until(lambda: len(self.here.devices()) >= 2, "devices published")
        return agent


@pytest.fixture
def machine(tmp_path):
    with stage("1.36") as here:
        yield Machine(here, tmp_path)


def names(machine):
    return [f"gpu-{gpu.pci.replace(':', '-').replace('.', '-')}" for gpu in machine.state.gpus]


def watched(machine):
    """Wait until the watch of the newest agent has read both GPUs and waits for events."""
    pid = str(machine.here.agents[-1].pid)

    def is_watched():
        calls = [line.split()[1] for line in machine.calls.read_text().splitlines() if line.startswith(f"{pid} ")]
        return calls.count("nvmlDeviceGetFieldValues") >= 2 and "nvmlEventSetWait_v2" in calls[-50:]

    until(is_watched, "both GPUs read")
    until(machine.here.has_whole_pool, "every slice written")


pytestmark = pytest.mark.gcc


def test_an_xid_taints_its_gpu_in_the_same_generation_through_restarts_and_application_errors_write_nothing(machine):
    port = free_port()
    agent = machine.start(f"--metrics-address=127.0.0.1:{port}")
    watched(machine)
    before = versions(machine.here)
    for _ in range(30):
        machine.state.gpus[0].xid(13)
    machine.write()
    until(lambda: 'dra_driver_xids_total{class="application",code="13"} 30.0' in metrics(port), "30 counted")
    assert versions(machine.here) == before

    machine.state.gpus[0].report_health(recovery_action=1, remap_pending=0, remap_failed=0)
    machine.state.gpus[0].xid(95)
    machine.write()
    one, two = names(machine)
    until(lambda: one in taints(machine.here), "a taint")
    found, stored = taints(machine.here), versions(machine.here)
    assert {key: value[:2] for key, value in found[one].items()} == {
        "needs-reset": ("gpu-reset", "NoSchedule"),
        "xid": ("95", "NoSchedule"),
    }
    assert not any(name.startswith(two) for name in found)
    assert {name: generation for name, (_, generation) in stored.items()} == {
        name: generation for name, (_, generation) in before.items()
    }
    assert 'dra_driver_faults{key="xid"} 1.0' in metrics(port)
    for _ in range(2):
        machine.here.end(agent, signal.SIGKILL)
        agent = machine.start()
        watched(machine)
        until(lambda: "role gained" in machine.here.log(), "the role")
    assert taints(machine.here) == found
    assert versions(machine.here) == stored
    messages = [one["message"] for one in machine.here.api.items(EVENTS) if one["reason"] == "DeviceFault"]
    # Two if the library's recovery action was read just before its event came.
    assert 1 <= len(messages) <= 2, messages
    assert len(set(messages)) == len(messages), "an Event was written again after a restart"


def test_a_kernel_message_taints_a_gpu_while_the_library_hangs_and_a_lost_gpu_stays_published(machine):
    machine.start()
    watched(machine)
    one, two = names(machine)
    machine.state.gpus[0].hang("nvmlDeviceGetFieldValues")
    machine.write()
    address = machine.state.gpus[0].pci.rpartition(".")[0]
    with machine.log.open("a") as file:
        file.write(f"12,1,1000,-;NVRM: Xid (PCI:{address}): 62, a user wrote this\n")
        file.write(f"4,2,2000,-;NVRM: Xid (PCI:{address}): 95, pid=1, name=): 79, pid=1\n")
    until(lambda: taints(machine.here).get(one, {}).get("xid", ("",))[0] == "95", "a taint")
    assert "gpu-lost" not in taints(machine.here)[one]
    machine.state.gpus[0].heal()
    machine.state.gpus[1].is_lost = True
    machine.write()
    until(lambda: "gpu-lost" in taints(machine.here).get(two, {}), "gpu-lost")
    assert "gpu-lost" not in taints(machine.here).get(one, {})
    assert {one, two} <= set(machine.here.devices())


def test_a_faulty_free_gpu_is_withheld_where_the_server_drops_taints(tmp_path):
    with stage("1.35") as here:
        machine = Machine(here, tmp_path)
        machine.start()
        machine.state.gpus[0].report_health(recovery_action=2, remap_pending=0, remap_failed=0)
        machine.write()
        until(lambda: set(here.devices()) == {names(machine)[1]}, "one device withheld")


def test_a_cordon_and_simulated_faults_are_published_survive_a_restart_and_end(tmp_path):
    profile = yaml.safe_load((FOLDER / "l40s.yaml").read_text())
    path = tmp_path / "mine.yaml"

    def write():
        path.with_suffix(".new").write_text(yaml.safe_dump(profile))
        path.with_suffix(".new").replace(path)

    write()
    with stage("1.36") as here:
        agent = here.start(f"simulated:{path}")
        until(here.devices, "devices")
        first, second = sorted(here.devices())[:2]
        assert cli(here, "cordon", first, "--reason", "noise", "--until", "2h").returncode == 0
        until(lambda: "cordoned" in taints(here).get(first, {}), "the cordon")
        row = next(gpu for gpu in profile["gpus"] if gpu["pci"].replace(":", "-").replace(".", "-") in second)
        row["health"] = {"xids": [{"code": 119}], "remapPending": True}
        write()
        until(lambda: "row-remap-pending" in taints(here).get(second, {}), "the faults")
        assert {key: value[:2] for key, value in taints(here)[second].items()} == {
            "needs-reset": ("xid-119", "NoSchedule"),
            "xid": ("119", "NoSchedule"),
            "row-remap-pending": ("", "None"),
        }
        before = taints(here)
        here.end(agent)
        here.start(f"simulated:{path}")
        until(lambda: "role gained" in here.log(), "the role")
        assert taints(here) == before
        shown = cli(here, "health", "show", "-o", "json")
        assert shown.returncode == 1
        assert {one["fault"] for one in json.loads(shown.stdout)["faults"]} >= {"cordoned", "xid", "needs-reset"}
        seen = cli(here, "devices", "-o", "json", "--hardware", f"simulated:{path}", "--node-name", "node-1")
        assert json.loads(seen.stdout)["faults"] == json.loads(shown.stdout)["faults"]
        assert cli(here, "cordon", "gpu-nowhere", "--reason", "x").returncode == 3
        assert cli(here, "uncordon", first).returncode == 0
        row["health"] = {"recoveryAction": 0, "remapPending": False}
        until(lambda: write() or not taints(here), "no fault and no cordon")


def test_a_new_instance_takes_over_a_fault_without_a_write_and_so_does_one_that_starts_later(tmp_path):
    profile = yaml.safe_load((FOLDER / "l40s.yaml").read_text())
    profile["gpus"][0]["health"] = {"recoveryAction": 1}
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(profile))
    with stage("1.36") as here:
        old = here.start(f"simulated:{path}", "--pod-uid", "0" * 36)
        until(lambda: taints(here), "a taint")
        before, stored = taints(here), versions(here)
        new = here.start(f"simulated:{path}", "--pod-uid", "1" * 36)
        until(lambda: "registered" in here.log() or "inventory" in here.log(), "the new instance beside the old one")
        here.end(old)
        until(lambda: "role gained" in here.log(), "the role")
        here.end(new)
        assert (taints(here), versions(here)) == (before, stored)
        here.start(f"simulated:{path}")
        until(lambda: "role gained" in here.log(), "the role")
        shown = json.loads(cli(here, "health", "show", "-o", "json").stdout)["faults"]
        (since,) = {one["since"] for one in shown}
        assert {time for found in before.values() for _, _, time in found.values()} == {since}
        assert (taints(here), versions(here)) == (before, stored)


def cli(here, *words):
    command = [sys.executable, "-m", "dra_driver", *words]
    command += ["--kubelet-plugins-directory-path", str(here.kubelet.plugins_dir)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def metrics(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        return answer.read().decode()
