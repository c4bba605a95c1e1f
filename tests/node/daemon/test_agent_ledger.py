"""The real agent and its ledger: a full disk, another program that locks it, devices that are kept back while
containers still run, calls that wait by the hundred. Two instances, restarts and kills between a kubelet's calls."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import grpc
import pytest

from dra_driver.base.machine import read_boot_id
from dra_driver.base.names import NVIDIA_DRIVER, gpu_of_device
from dra_driver.node._proto import dra_v1_pb2 as v1
from dra_driver.simulator.plugin_watcher import ClaimRef, Plugin, Registrar
from dra_driver.simulator.store import CLAIMS, EVENTS, SLICES
from tests.node.daemon.support.claims import claim
from tests.node.daemon.support.plugin_calls import answered, begin, call, wire
from tests.support.agents.agent_process import Stage, stage
from tests.support.plugin.containers import Container
from tests.support.ports import free_port
from tests.support.small_disk import fill, mount
from tests.support.waiting import until

WHOLE = "gpu-0000-1b-00-0"
SIMULATED = "simulated:dgx-h100"


@pytest.fixture
def here() -> Iterator[Stage]:
    with stage() as it:
        yield it


class Instance:
    """One of the agents on the node, and the kubelet's connection to it."""

    def __init__(self, here: Stage, *, pod_uid: str = "") -> None:
        flags = ("--pod-uid", pod_uid) if pod_uid else ()
        before = set(here.kubelet.registrar_dir.glob("*.sock"))
        self.process = here.start(SIMULATED, *flags)
        self.log = here.log
        until(lambda: set(here.kubelet.registrar_dir.glob("*.sock")) - before or "registered" in here.log(), "a socket")
        (path,) = set(here.kubelet.registrar_dir.glob(f"*{pod_uid}-reg.sock"))
        self.registration = path
        info = Registrar(path).get_info()
        self.plugin = Plugin(info.driver, info.endpoint, "v1.DRAPlugin", path)

    def prepare(self, ref: ClaimRef, seconds: float = 45.0) -> str:
        """Prepare a claim; return the error."""
        request = v1.NodePrepareResourcesRequest(claims=[wire(ref)])
        return call(self.plugin, "NodePrepareResources", request, seconds).claims[ref.uid].error

    def unprepare(self, ref: ClaimRef, seconds: float = 45.0) -> str:
        request = v1.NodeUnprepareResourcesRequest(claims=[wire(ref)])
        return call(self.plugin, "NodeUnprepareResources", request, seconds).claims[ref.uid].error


def error_of(call) -> str:
    (answer,) = call.result().claims.values()
    return answer.error


@contextmanager
def container(pods: Path, pod: str) -> Iterator[subprocess.Popen[str]]:
    """Run a process that sees a mount from the kubelet's folder of a pod, as each container does."""
    hosts = pods / pod / "etc-hosts"
    hosts.parent.mkdir(parents=True)
    hosts.write_text("127.0.0.1 localhost")
    script = f"mount --bind {hosts} /etc/hosts && echo up && exec sleep 120"
    process = subprocess.Popen(["unshare", "--mount", "sh", "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        if process.stdout.readline() != "up\n":
            pytest.skip("needs root and the right to mount")
        yield process
    finally:
        process.kill()
        process.wait(60)
        process.stdout.close()


def of_pod(here: Stage, ref: ClaimRef, pod: str) -> None:
    """Reserve a claim for a pod."""
    path = CLAIMS.path(ref.namespace, ref.name)
    made = here.api.request("GET", path)
    made["status"]["reservedFor"] = [{"resource": "pods", "name": "p", "uid": pod}]
    here.api.request("PUT", f"{path}/status", body=made)


@pytest.mark.parametrize("how", ["restarted", "killed", "another instance"])
def test_a_device_whose_container_still_runs_is_kept_back_by_the_next_agent(here: Stage, how: str) -> None:
    pod, uids = str(uuid.uuid4()), [str(uuid.uuid4()) for _ in range(2)]
    old, new = claim(here, WHOLE, "old"), claim(here, WHOLE, "new")
    of_pod(here, old, pod)
    with container(here.kubelet.plugins_dir.parent / "pods", pod) as process:
        first = Instance(here, pod_uid=uids[0])
        assert first.prepare(old) == ""
        second = Instance(here, pod_uid=uids[1]) if how == "another instance" else None
        assert first.unprepare(old) == ""
        here.end(first.process, signal.SIGKILL if how == "killed" else signal.SIGTERM)
        second = second or Instance(here, pod_uid=uids[1])
        assert f"containers of pod {pod}" in answered(lambda: second.prepare(new, 3.0))
        process.kill()
        process.wait(60)
        assert second.prepare(new) == ""
        assert second.unprepare(new) == ""


def taints(here: Stage) -> dict[str, list[str]]:
    """Return the keys of the taints of each published device that has any."""
    devices = [device for one in here.api.items(SLICES) for device in one["spec"].get("devices", ())]
    return {device["name"]: [one["key"] for one in device["taints"]] for device in devices if device.get("taints")}


def not_released(here: Stage) -> list[str]:
    """Return the texts of the Events about devices that are not released."""
    return sorted(one["message"] for one in here.api.items(EVENTS) if one["reason"] == "DeviceNotReleased")


def metrics(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return answer.read().decode()


@pytest.fixture
def tainting() -> Iterator[Stage]:
    """A cluster that keeps taints."""
    with stage("1.36") as it:
        yield it


def leave(here: Stage, uid: str, device: str, node: int) -> None:
    """Record a claim that was unprepared, whose bound is over, and of whose device a node may still be open."""
    boot, until_s = read_boot_id("/proc"), time.clock_gettime(time.CLOCK_BOOTTIME)
    row = f"'{uid}', 'ns', '{uid}', '[\"{device}\"]', '[]', {until_s}, '{boot}'"
    nodes = f"INSERT INTO kept_nodes (claim_uid, boot_id, nodes) VALUES ('{uid}', '{boot}', '[{node}]')"
    ledger = here.kubelet.plugins_dir / NVIDIA_DRIVER / "ledger.db"
    with closing(sqlite3.connect(ledger)) as connection, connection:
        connection.execute(f"INSERT INTO kept_back VALUES ({row})")
        connection.execute(nodes)


def test_a_device_that_a_process_has_open_after_its_claim_is_tainted_and_reported_until_the_process_ends(
    tainting: Stage, tmp_path: Path
) -> None:
    """Simulated GPUs have no nodes of their own; /dev/random stands for one, in the ledger of an agent that ended."""
    here, node, pod, port = tainting, os.makedev(1, 8), str(uuid.uuid4()), free_port()
    here.end(Instance(here).process, signal.SIGKILL)
    leave(here, "old", WHOLE, node)
    container = Container(tmp_path, pod, {"/dev/nvidia0": node}, "exec 7</dev/nvidia0")
    try:
        here.start(SIMULATED, f"--metrics-address=127.0.0.1:{port}")
        until(lambda: taints(here).get(WHOLE) == [f"{NVIDIA_DRIVER}/unreleased"], "the taint")
        assert all(name.startswith(WHOLE) for name in taints(here))
        until(lambda: 'dra_driver_problems{code="release.open"} 1.0' in metrics(port), "the metric")
        assert f"of pod {pod}" in not_released(here)[0]
    finally:
        container.end()
    until(lambda: not taints(here), "no taint")
    until(lambda: "release.open" not in metrics(port), "no problem")


def test_shares_of_a_device_are_not_tainted_while_a_process_has_it_open_through_an_ended_share(
    tainting: Stage, tmp_path: Path
) -> None:
    here, node, shared, other = tainting, os.makedev(1, 8), "gpu-0000-43-00-0", "gpu-0000-52-00-0"
    rules = tmp_path / "rules.yaml"
    rules.write_text(f"version: rules/v1\nrules:\n- match: {{devices: [{WHOLE}]}}\n  replicas: 2\n")
    here.end(Instance(here).process, signal.SIGKILL)
    for uid, recorded in (("a", f"{WHOLE}-share-~"), ("b", f"{shared}-share-~"), ("c", other)):
        leave(here, uid, recorded, node)
    container = Container(tmp_path, str(uuid.uuid4()), {"/dev/nvidia0": node}, "exec 7</dev/nvidia0")
    try:
        here.start(SIMULATED, "--sharing-config", str(rules))
        until(lambda: taints(here).get(other), "the taint")
        assert {gpu_of_device(name) for name in taints(here)} == {shared, other}
        until(lambda: not_released(here), "the event")
        assert not_released(here)[0].startswith(f"{WHOLE}: no claim gets it whole, because process")
    finally:
        container.end()
    until(lambda: not taints(here), "no taint")


@pytest.fixture
def small_folder(here: Stage) -> Iterator[Path]:
    """The plugins' folder on a file system of 512 KiB."""
    folder = here.kubelet.plugins_dir
    if not mount("-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)):
        pytest.skip("needs root and the right to mount a tmpfs")
    yield folder
    for agent in here.agents:
        agent.kill()
        agent.wait(60)
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_claims_are_unprepared_on_a_full_disk_even_by_an_agent_that_starts_there(
    here: Stage, small_folder: Path, how: signal.Signals
) -> None:
    names = [f"gpu-0000-{slot}-00-0" for slot in ("1b", "43", "52")]
    refs = [claim(here, name, f"c{number}") for number, name in enumerate(names)]
    agent = Instance(here)
    assert [agent.prepare(ref) for ref in refs] == ["", "", ""]
    ballast = [fill(small_folder)]
    assert agent.unprepare(refs[0]) == ""
    following = claim(here, names[0], "following")
    assert "ledger." in agent.prepare(following)
    here.end(agent.process, how)
    ballast.append(fill(small_folder).rename(small_folder / "more"))
    agent = Instance(here)
    assert agent.unprepare(refs[0]) == ""
    assert agent.unprepare(refs[1]) == ""
    assert "ledger." in agent.prepare(following)
    assert [path.name.partition("claim_")[2] for path in here.kubelet.cdi_dir.iterdir()] == [f"{refs[2].uid}.json"]
    here.end(agent.process, how)
    agent = Instance(here)
    for path in (small_folder / "ballast", small_folder / "more"):
        path.unlink(missing_ok=True)
    assert agent.prepare(following) == ""
    assert "is held" not in agent.log()
    again = claim(here, names[1], "again")
    assert agent.prepare(again) == ""
    for ref in (following, again, refs[2]):
        assert agent.unprepare(ref) == ""
    assert list(here.kubelet.cdi_dir.iterdir()) == []


HOLDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.readline()
connection.execute("COMMIT")
"""


@contextmanager
def locked(here: Stage) -> Iterator[subprocess.Popen[str]]:
    """Run another program that has the ledger locked until a line is written to it."""
    path = here.kubelet.plugins_dir / NVIDIA_DRIVER / "ledger.db"
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    try:
        yield process
    finally:
        process.communicate("\n", timeout=60)


@pytest.mark.long
def test_calls_wait_until_their_deadline_for_a_ledger_that_another_program_locks(here: Stage) -> None:
    agent = Instance(here)
    prepared, other, fresh = (claim(here, f"gpu-0000-{s}-00-0", f"c{s}") for s in ("1b", "43", "52"))
    assert agent.prepare(prepared) == ""
    assert agent.prepare(other) == ""
    with locked(here) as holder, grpc.insecure_channel(f"unix:{agent.plugin.endpoint}") as channel:
        both = v1.NodePrepareResourcesRequest(claims=[wire(prepared), wire(fresh)])
        answers = answered(lambda: begin(channel, "NodePrepareResources", both, 3.0).result()).claims
        assert answers[prepared.uid].error == "", "nothing has to be written for it"
        assert "ledger.busy" in answers[fresh.uid].error
        assert "locked by another process" in answers[fresh.uid].error
        assert "ledger.busy" in answered(lambda: agent.unprepare(other, 2.0))
        assert agent.unprepare(fresh) == "", "the ledger has no record of it"
        calls = [
            begin(channel, "NodePrepareResources", v1.NodePrepareResourcesRequest(claims=[wire(fresh)]), 45.0),
            begin(channel, "NodeUnprepareResources", v1.NodeUnprepareResourcesRequest(claims=[wire(other)]), 45.0),
        ]
        with pytest.raises(grpc.FutureTimeoutError):
            calls[0].result(timeout=6.0)  # longer than the 5 seconds that an agent up to 0.1.0 waited
        assert not calls[1].done()
        assert holder.stdin is not None
        holder.stdin.write("\n")
        holder.stdin.flush()
        assert [error_of(each) for each in calls] == ["", ""]


def test_an_unprepare_is_answered_while_hundreds_of_prepares_wait_for_the_device_that_it_frees(here: Stage) -> None:
    agent = Instance(here)
    held = claim(here, WHOLE, "held")
    assert agent.prepare(held) == ""
    waiting = [claim(here, WHOLE, f"w{number}") for number in range(160)]
    with grpc.insecure_channel(f"unix:{agent.plugin.endpoint}") as channel:
        requests = [v1.NodePrepareResourcesRequest(claims=[wire(ref)]) for ref in waiting]
        calls = [begin(channel, "NodePrepareResources", request, 45.0) for request in requests]
        until(lambda: here.log().count("device held by another claim, waiting") >= 128, "all threads to wait")
        assert Registrar(agent.registration).get_info().driver == NVIDIA_DRIVER
        assert agent.unprepare(ClaimRef("default", "unknown", "unknown"), 20.0) == ""
        assert agent.unprepare(held, 20.0) == ""
        until(lambda: any(c.done() for c in calls), "one of them to get the device")
        (got,) = [error_of(each) for each in calls if each.done()]
        assert got == ""
        threads = int(Path(f"/proc/{agent.process.pid}/status").read_text().partition("Threads:")[2].split()[0])
        assert threads < 200
        for each in calls:
            each.cancel()
