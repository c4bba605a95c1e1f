"""Scenes for the storm's eyes, each on a node of its own without any agent: what must never happen, and what may.

A program of its own (test_observer starts it), because its containers are real ones. Prints one JSON object: what was
reported of each scene.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from dra_driver.base.machine import read_boot_id
from dra_driver.base.names import NVIDIA_DRIVER
from dra_driver.simulator.api_server import EmbeddedApi
from dra_driver.simulator.store import SLICES
from tests.storm.support import sandbox
from tests.storm.support.eyes.counters import Counters
from tests.storm.support.eyes.hours import Hours
from tests.storm.support.eyes.observer import Observer
from tests.storm.support.eyes.outages import Outage, Outages
from tests.storm.support.node.cluster import NODE, Claim, Pod
from tests.storm.support.node.container_host import Container
from tests.storm.support.node.devices import CUT, HOT, SHARED, gpu_name, nodes_of
from tests.storm.support.node.kubelet import StormKubelet
from tests.storm.support.node.machine import Machine

WHOLE, OTHER, PASSED, SHARE = gpu_name(HOT), gpu_name(CUT), f"{gpu_name(HOT)}-vfio", gpu_name(SHARED)
PART = f"{WHOLE}-mig-1g10gb-19-2"
_scenes: dict[str, Callable[[Scene], None]] = {}


class Scene:
    """A node whose hardware, CDI files and slices a test writes itself."""

    def __init__(self, root: Path) -> None:
        self.api = EmbeddedApi()
        self.kubelet = StormKubelet(root, self.api)
        data = self.kubelet.plugins_dir / NVIDIA_DRIVER
        data.mkdir()
        self.machine = Machine(root, data, is_static=False)
        self.observer = Observer(self.machine, self.kubelet)
        self.outages = Outages(self.api, self.machine)
        self.counters, self.hours = Counters(), Hours()
        self.more: list[str] = []
        self.containers: list[Container] = []

    def wrong(self) -> list[str]:
        return [*self.observer.wrong, *self.outages.wrong, *self.counters.wrong, *self.more]

    # -- claims

    def claim(self, uid: str, device: str, namespace: str = "team-a") -> Claim:
        claim = Claim(uid, f"claim-{uid}", namespace, (device,), device == SHARE, [Pod(f"{uid}-pod", f"pod-{uid}")])
        claim.cdi_ids = (f"vendor/claim={uid}",)
        self.write_file(claim, nodes_of(device))
        if "-mig-" in device:
            self.set_state("mig", {HOT: {"made": [["1g.10gb", 2]]}})
        if device == SHARE:
            self.set_state("modes", {self.machine.uuids[SHARED]: {"timeSlice": "Long"}})
        return claim

    def prepared(self, uid: str, device: str) -> Claim:
        claim = self.claim(uid, device)
        self.observer.prepared(claim, {device})
        return claim

    def run(self, claim: Claim, *, is_open: bool = True) -> Container:
        self.kubelet.admit(claim, claim.pods[0])
        container = self.kubelet.run(claim, claim.pods[0], is_open=is_open)
        self.containers.append(container)
        self.observer.started(claim, container)
        return container

    def write_file(self, claim: Claim, numbers: set[int], mounted: str = "") -> None:
        """Write a claim's CDI file; `mounted` is the folder that its containers get as that of an MPS daemon."""
        nodes = [
            {"path": f"/dev/node-{n}", "type": "c", "major": os.major(n), "minor": os.minor(n)} for n in sorted(numbers)
        ]
        mounts = [{"hostPath": mounted, "containerPath": "/tmp/nvidia-mps"}] if mounted else []
        device = {"name": claim.uid, "containerEdits": {"deviceNodes": nodes, "mounts": mounts}}
        document = {"cdiVersion": "0.6.0", "kind": "vendor/claim", "devices": [device]}
        (self.kubelet.cdi_dir / f"claim_{claim.uid}.json").write_text(json.dumps(document))

    # -- the hardware

    def set_state(self, name: str, states: dict[str, Any]) -> None:
        (self.machine.data / f"simulated-{name}.lock").touch()
        (self.machine.data / f"simulated-{name}.json").write_text(
            json.dumps({"bootId": read_boot_id("/proc"), "gpus": states})
        )

    def bind(self, address: str, driver: str) -> None:
        (home,) = self.machine.data.glob(f"simulated-bus/*/sys/devices/*/{address}")
        (home / "driver").unlink()
        (home / "driver").symlink_to(f"../../../bus/pci/drivers/{driver}")

    # -- slices and pages

    def publish(self, device: str, *taints: tuple[str, str]) -> None:
        wire = [{"key": f"{NVIDIA_DRIVER}/{key}", "value": value, "effect": "NoSchedule"} for key, value in taints]
        spec = {
            "driver": NVIDIA_DRIVER,
            "nodeName": NODE,
            "pool": {"generation": 1},
            "devices": [{"name": device, "taints": wire}],
        }
        body = {"metadata": {"name": "slice"}, "spec": spec}
        self.api.store.put(SLICES, ("", "slice"), body)
        self.outages.look()

    def show(self, pid: int, line: str) -> None:
        agent = SimpleNamespace(uid=str(pid), process=SimpleNamespace(pid=pid), scrape=lambda: line + "\n")
        self.counters.take(agent, time.monotonic() + 60)  # type: ignore[arg-type]


def scene(work: Callable[[Scene], None]) -> Callable[[Scene], None]:
    _scenes[str(work.__doc__)] = work
    return work


@scene
def _two_claims(it: Scene) -> None:
    """two prepared claims on one GPU"""
    it.prepared("u1", WHOLE)
    it.prepared("u2", WHOLE)


@scene
def _process_of_another(it: Scene) -> None:
    """a claim prepared while a process of another has the GPU open"""
    first = it.prepared("u1", WHOLE)
    it.run(first)
    it.observer.leaves(first)
    it.prepared("u2", WHOLE)


@scene
def _partition_of_whole(it: Scene) -> None:
    """a partition under a process on the whole GPU"""
    first = it.prepared("u1", WHOLE)
    it.run(first)
    it.observer.leaves(first)
    it.prepared("u2", PART)


@scene
def _may_open(it: Scene) -> None:
    """a process that may open the device of the next claim"""
    first = it.prepared("u1", WHOLE)
    it.run(first, is_open=False)
    it.observer.leaves(first)
    it.prepared("u2", WHOLE)


@scene
def _shares(it: Scene) -> None:
    """shares of one GPU"""
    for uid in ("u1", "u2"):
        it.run(it.prepared(uid, SHARE))


@scene
def _ended(it: Scene) -> None:
    """a process that has ended"""
    first = it.prepared("u1", WHOLE)
    container = it.run(first)
    it.observer.leaves(first)
    container.kill()
    container.wait()
    it.prepared("u2", PART)


@scene
def _destroyed(it: Scene) -> None:
    """a partition that is destroyed under its claim"""
    it.prepared("u1", PART)
    it.set_state("mig", {})
    it.observer.check()


@scene
def _destroyed_under_process(it: Scene) -> None:
    """a partition that is destroyed under a process"""
    first = it.prepared("u1", PART)
    it.run(first)
    it.observer.leaves(first)
    it.set_state("mig", {})
    it.observer.check()


@scene
def _lost_by_gpu(it: Scene) -> None:
    """a partition and a time slice of GPUs that were lost and came back"""
    for device in (PART, SHARE):
        claim = it.claim(device, device)
        claim.asked_at = time.monotonic()
        it.observer.prepared(claim, {device})
    it.machine.set_health({address: {"lost": True} for address in (HOT, SHARED)})
    it.machine.set_health({})
    it.more += [f"{one} is still there" for one in it.machine.partitions()]
    it.observer.check()


@scene
def _destroyed_after_return(it: Scene) -> None:
    """a partition that is destroyed after its GPU came back"""
    it.machine.set_health({HOT: {"lost": True}})
    it.machine.set_health({})
    claim = it.claim("u1", PART)
    claim.asked_at = time.monotonic()
    it.observer.prepared(claim, {PART})
    it.set_state("mig", {})
    it.observer.check()


@scene
def _refused_for_nothing(it: Scene) -> None:
    """a refusal because of a partition that nothing took from its claim"""
    _refuse_as_missing(it, it.prepared("u1", PART))


@scene
def _refused_after_loss(it: Scene) -> None:
    """a refusal because of a partition whose GPU was lost"""
    claim = it.prepared("u1", PART)
    it.machine.set_health({HOT: {"lost": True}})
    _refuse_as_missing(it, claim)


def _refuse_as_missing(it: Scene, claim: Claim) -> None:
    if not it.observer.may_miss_partition(claim):
        it.more.append(f"{claim} was refused")


@scene
def _reset(it: Scene) -> None:
    """a GPU that is reset under a claim"""
    it.prepared("u1", WHOLE)
    it.observer.check()
    it.set_state("resets", {HOT: {"health": "thermal_margin=40,", "xids": 0}})
    it.observer.check()


@scene
def _reset_before(it: Scene) -> None:
    """a GPU that is reset before its claim came"""
    it.observer.check()
    it.set_state("resets", {HOT: {"health": "thermal_margin=40,", "xids": 0}})
    it.prepared("u1", WHOLE)


@scene
def _lost_file(it: Scene) -> None:
    """a CDI file that is gone"""
    it.prepared("u1", WHOLE)
    (it.kubelet.cdi_dir / "claim_u1.json").unlink()
    it.observer.check()


@scene
def _other_node(it: Scene) -> None:
    """a CDI file with another device's node"""
    claim = it.claim("u1", WHOLE)
    it.write_file(claim, nodes_of(OTHER))
    it.observer.prepared(claim, {WHOLE})


@scene
def _other_folder(it: Scene) -> None:
    """two files that mount different folders in one place"""
    _mount_two(it, is_mps=(True, False))


@scene
def _both_under_mps(it: Scene) -> None:
    """two claims under MPS"""
    _mount_two(it, is_mps=(True, True))


def _mount_two(it: Scene, *, is_mps: tuple[bool, bool]) -> None:
    for device, asks in zip((WHOLE, OTHER), is_mps, strict=True):
        claim = it.claim(device, device)
        claim.is_mps = asks
        it.write_file(claim, nodes_of(device), f"/daemon/{device}")
        it.observer.prepared(claim, {device})


@scene
def _beside_shares(it: Scene) -> None:
    """two claims with a share each, and one GPU"""
    for uid in ("u1", "u2"):
        claim = it.claim(uid, SHARE)
        claim.devices = (SHARE, WHOLE)
        it.write_file(claim, nodes_of(SHARE) | nodes_of(WHOLE))
        it.observer.prepared(claim, {SHARE, WHOLE})


@scene
def _machine_loses(it: Scene) -> None:
    """a GPU that a virtual machine loses"""
    it.bind(HOT, "vfio-pci")
    first = it.prepared("u1", PASSED)
    it.run(first)
    it.observer.leaves(first)
    it.bind(HOT, "nvidia")
    it.observer.check()


@scene
def _machine_is_ending(it: Scene) -> None:
    """a GPU that leaves a virtual machine which is ending"""
    _take_back_while_ending(it)
    it.observer.check()


@scene
def _machine_is_ending_beside_next(it: Scene) -> None:
    """a GPU that the next claim gets while a virtual machine is ending"""
    _take_back_while_ending(it)
    it.prepared("u2", WHOLE)


def _take_back_while_ending(it: Scene) -> None:
    """Let the vendor's driver get a GPU at a moment when the kernel lists no files of its last user any more.

    A real kernel would wait with that until these files are closed; simulated hardware does not.
    """
    it.bind(HOT, "vfio-pci")
    first = it.prepared("u1", PASSED)
    container = it.run(first)
    it.observer.leaves(first)
    container.is_ending = lambda: True  # type: ignore[method-assign]
    it.bind(HOT, "nvidia")


@scene
def _machine_gets(it: Scene) -> None:
    """a GPU that a virtual machine gets under a claim"""
    it.prepared("u1", WHOLE)
    it.bind(HOT, "vfio-pci")
    it.observer.check()


@scene
def _file_stays(it: Scene) -> None:
    """a file of an unprepared claim"""
    claim = it.prepared("u1", WHOLE)
    it.observer.leaves(claim)
    it.observer.unprepared(claim)


@scene
def _cordoned(it: Scene) -> None:
    """a cordoned GPU that is offered"""
    it.outages.begin(Outage(HOT, "a cordon", keys=("cordoned",)))
    it.publish(WHOLE, ("cordoned", ""))
    it.publish(PART)


@scene
def _not_out_yet(it: Scene) -> None:
    """a GPU that is offered before it was seen out"""
    outage = it.outages.begin(Outage(HOT, "a cordon", keys=("cordoned",)))
    it.publish(WHOLE)
    it.publish(WHOLE, ("cordoned", ""))
    it.outages.end(outage)
    it.publish(WHOLE)


@scene
def _cured(it: Scene) -> None:
    """a cured GPU that is offered"""
    it.outages.begin(Outage(HOT, "a fault", "thermal_margin=40,"))
    it.publish(WHOLE, ("needs-reset", "gpu-reset"))
    it.set_state("resets", {HOT: {"health": "thermal_margin=40,", "xids": 0}})
    it.publish(WHOLE)


@scene
def _given_up(it: Scene) -> None:
    """a GPU that was given up and is offered after a reset"""
    it.outages.begin(Outage(HOT, "a fault", "thermal_margin=40,"))
    it.publish(WHOLE, ("remediation", "support"))
    it.set_state("resets", {HOT: {"health": "thermal_margin=40,", "xids": 0}})
    it.publish(WHOLE)


@scene
def _falls(it: Scene) -> None:
    """a total that falls"""
    it.show(1, 'dra_allocated_seconds_total{namespace="team-a",profile="gpu"} 3')
    it.show(2, 'dra_allocated_seconds_total{namespace="team-a",profile="gpu"} 2')


@scene
def _restarted(it: Scene) -> None:
    """a total of a process that was restarted"""
    it.show(1, "dra_driver_xids_total 3")
    it.show(2, "dra_driver_xids_total 2")


@scene
def _charged_to_another(it: Scene) -> None:
    """hours that are charged to another namespace"""
    _had(it, "u1", "team-a", 20.0)
    _had(it, "u2", "team-b", 100.0)
    it.more += it.hours.wrong({"team-a": 20.0})


@scene
def _charged_twice(it: Scene) -> None:
    """hours that are charged twice"""
    _had(it, "u1", "team-a", 20.0)
    it.more += it.hours.wrong({"team-a": 120.0})


@scene
def _charged_beside_share(it: Scene) -> None:
    """hours of a GPU beside a share"""
    _had(it, "u1", "team-a", 20.0, (SHARE, WHOLE))
    it.more += it.hours.wrong({"team-a": 20.0})


def _had(it: Scene, uid: str, namespace: str, seconds: float, devices: tuple[str, ...] = (WHOLE,)) -> None:
    claim = it.claim(uid, devices[0], namespace)
    claim.devices = devices
    for what, at in (("may_begin", 1.0), ("began", 1.1), ("leaves", 1.0 + seconds), ("ended", 1.1 + seconds)):
        it.hours.note(claim, what, at)


def main() -> None:
    folder = sandbox.enter("tests.storm.support.shown")
    found = {}
    for number, (what, work) in enumerate(_scenes.items()):
        root = folder / str(number)
        root.mkdir()
        it = Scene(root)
        work(it)
        found[what] = it.wrong()
        for container in it.containers:
            container.kill()
        it.kubelet.terminals.close()
    print(json.dumps(found))


if __name__ == "__main__":
    sys.exit(main())
