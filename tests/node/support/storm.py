"""A storm over one node: two real agents, MIG on demand, whole and shared GPUs, and kills at any moment.

    python -m tests.node.support.storm OPERATIONS [SEED]       10000 operations take a few minutes

Kubelets (threads) prepare, repeat and unprepare claims with either of the agents; the scheduler behind them is a bad
one that allocates devices which other claims hold. Meanwhile agents are killed, or ended, and started again. After each
answer the verifier reads the CDI folder and the state of the simulated hardware, and checks that no device is held by
two claims and that prepared claims have everything that was answered; in the end, that nothing is left. Prints one JSON
object: what was done, and what was wrong.
"""

from __future__ import annotations

import fcntl
import json
import random
import signal
import sys
import threading
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from dra_driver.base.names import NVIDIA_DRIVER
from dra_driver.node._proto import dra_v1_pb2 as v1
from dra_driver.node.kubelet.methods import VERSIONS
from dra_driver.simulator.store import CLAIMS
from tests.support.agents.agent_process import NODE, Stage, stage

KUBELETS = 6
CALM_SECONDS = (0.1, 1.2)  # between two signals
CUT = tuple(f"gpu-0000-0{number}-00-0" for number in (1, 2))  # whole, or in parts
SHARED = "gpu-0000-03-00-0"
SHARES = 4
PARTS = {  # memory slices of an H100, by the last part of a partition's name; NVIDIA's placements
    **{f"1g10gb-19-{start}": {start} for start in range(7)},
    **{f"2g20gb-14-{start}": {start, start + 1} for start in (0, 2, 4)},
    **{f"3g40gb-9-{start}": set(range(start, start + 4)) for start in (0, 4)},
}
PROFILES = {"19": "1g.10gb", "14": "2g.20gb", "9": "3g.40gb"}
PROFILE = {
    "about": "GPUs for a storm",
    "nodeName": NODE,
    "lookedUp": "2026-11-22",
    "sources": ["made up"],
    "driverVersion": "580.126.20",
    "cudaDriverVersion": "13.0",
    "gpuDefaults": {"model": "h100-sxm5-80gb"},
    "gpus": [*({"pci": f"0000:0{number}:00.0"} for number in (1, 2)), {"pci": "0000:03:00.0", "model": "l40s"}],
}
RULES = f"""version: rules/v1
rules:
  - match: {{devices: ["{SHARED}"]}}
    replicas: {SHARES}
    sharing: {{strategy: TimeSlicing, timeSlicingConfig: {{interval: Long}}}}
"""
PODS = tuple(str(uuid.UUID(int=number)) for number in (1, 2))
PATIENT = ("claim.device-in-use", "prepare.locked", "ledger.busy", "hardware.insufficient-resources")
PATIENT += (
    "hardware.partition-in-use",
    "claim.hardware-waiting",
    "claim.device-unknown",
    "api.timeout",
    "api.unreachable",
)


@dataclass
class Claim:
    """A claim that the scheduler gave devices."""

    uid: str
    name: str
    devices: tuple[str, ...]
    is_prepared: bool = False

    @property
    def units(self) -> set[str]:
        """Return what no other claim may have at the same time."""
        return {unit for device in self.devices for unit in units_of(device)}


def units_of(device: str) -> set[str]:
    if device == SHARED:
        return set()
    if device in CUT:
        return {f"{device}/{index}" for index in range(8)}
    gpu, _, part = device.partition("-mig-")
    return {f"{gpu}/{index}" for index in PARTS[part]}


def choose(chance: random.Random) -> tuple[str, ...]:
    """Choose the devices of a claim: a whole GPU, a share, a partition, or two partitions."""
    kind, parts = chance.random(), sorted(PARTS)
    if kind < 0.1:
        return (chance.choice(CUT),)
    if kind < 0.4:
        return (SHARED,)
    both = tuple(f"{gpu}-mig-{chance.choice(parts)}" for gpu in CUT)
    return both if kind < 0.5 else (chance.choice(both),)


def share_of(device: str) -> dict[str, Any]:
    """Return what the scheduler adds to a device that may be allocated many times."""
    return {"shareID": str(uuid.uuid4()), "consumedCapacity": {"shares": "1"}} if device == SHARED else {}


class Node:
    """The machine: its folders and two agents."""

    def __init__(self, here: Stage) -> None:
        self.here = here
        profile, rules = here.folder / "profile.yaml", here.folder / "rules.yaml"
        profile.write_text(json.dumps(PROFILE))
        rules.write_text(RULES)
        self._flags = (f"simulated:{profile}", "--sharing-config", str(rules))
        self.agents: list[Any] = [None, None]
        self.data = here.kubelet.plugins_dir / NVIDIA_DRIVER
        options = [("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 100)]
        options += [("grpc.min_reconnect_backoff_ms", 50), ("grpc.enable_http_proxy", 0)]
        self.channels = [grpc.insecure_channel(f"unix:{self.data}/dra-{pod}.sock", options=options) for pod in PODS]

    def start(self, index: int) -> None:
        hardware, *flags = self._flags
        self.agents[index] = self.here.start(hardware, *flags, "--pod-uid", PODS[index])

    def end(self, index: int, number: signal.Signals) -> None:
        self.agents[index].send_signal(number)
        self.agents[index].wait(60)

    def await_answer(self, index: int) -> None:
        """Wait until an agent serves."""
        grpc.channel_ready_future(self.channels[index]).result(timeout=60)

    def await_devices(self) -> None:
        wanted = {*CUT, f"{CUT[0]}-mig-1g10gb-19-0", SHARED}
        deadline = time.monotonic() + 60
        while not wanted <= set(self.here.devices()):
            if time.monotonic() > deadline:
                raise AssertionError(f"not published: {wanted - set(self.here.devices())}\n{self.here.log()}")
            time.sleep(0.05)

    def is_allocated(self, claim: Claim) -> bool:
        """Return whether the claim is allocated now, according to the API server."""
        found = (each for each in self.here.api.items(CLAIMS) if each["metadata"]["uid"] == claim.uid)
        return any((each.get("status") or {}).get("allocation") for each in found)

    def files(self) -> set[str]:
        """Return the UIDs of the claims that have a CDI file."""
        names = (path.name for path in self.here.kubelet.cdi_dir.iterdir())
        return {name.partition("claim_")[2].removesuffix(".json") for name in names if not name.startswith(".")}

    def partitions(self) -> set[str]:
        """Return the names of the partitions on the simulated GPUs."""
        found = set()
        for address, state in self.state("simulated-mig.json").items():
            gpu = f"gpu-{address.replace(':', '-').replace('.', '-')}"
            for profile, start in state.get("made", ()):
                number = next(n for n, name in PROFILES.items() if name == profile)
                found.add(f"{gpu}-mig-{profile.replace('.', '')}-{number}-{start}")
        return found

    def state(self, file: str) -> dict[str, Any]:
        """Return the states of the simulated GPUs; the file is written in place, and read under its lock."""
        try:
            with (self.data / file).with_suffix(".lock").open() as lock:
                fcntl.flock(lock, fcntl.LOCK_SH)
                text = (self.data / file).read_text()
        except FileNotFoundError:
            return {}
        if not text:
            return {}
        states: dict[str, Any] = json.JSONDecoder().raw_decode(text)[0]["gpus"]  # a killed writer leaves an old end
        return states


@dataclass
class Verifier:
    """Compares what was answered with what is on the node."""

    node: Node
    held: dict[str, Claim] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    mutex: threading.Lock = field(default_factory=threading.Lock)

    def prepared(self, claim: Claim, answered: set[str]) -> None:
        """Record that a claim was answered and has its devices from now on."""
        with self.mutex:
            self.held[claim.uid] = claim
            if answered != set(claim.devices):
                self.wrong.append(f"{claim} was given {answered}")
            for other in self.held.values():
                if other is not claim and (both := other.units & claim.units):
                    self.wrong.append(f"{sorted(both)} is held by two claims: {claim} and {other}")
            self._check()

    def leaves(self, claim: Claim) -> None:
        """Record that Unprepare of a claim is about to be sent: it may lose its devices from now on."""
        with self.mutex:
            self.held.pop(claim.uid, None)

    def unprepared(self, claim: Claim) -> None:
        with self.mutex:
            if claim.uid in self.node.files():
                self.wrong.append(f"{claim} was unprepared and has its CDI file")
            self._check()

    def refused(self, claim: Claim, error: str) -> None:
        """Count a refusal as wrong unless another claim may hold a device or the agent may still work on it."""
        if "claim.not-allocated" in error and self.node.is_allocated(claim):
            return  # a late answer of the embedded API server under load, and no fault of the agent
        if not any(code in error for code in PATIENT):
            with self.mutex:
                self.wrong.append(f"{claim} was refused: {error}")

    def taken(self) -> set[str]:
        with self.mutex:
            return {unit for claim in self.held.values() for unit in claim.units}

    def _check(self) -> None:
        files, partitions = self.node.files(), self.node.partitions()
        for claim in self.held.values():
            if claim.uid not in files:
                self.wrong.append(f"{claim} has lost its CDI file")
            if gone := {device for device in claim.devices if "-mig-" in device} - partitions:
                self.wrong.append(f"{claim} has lost {sorted(gone)}")
            if SHARED in claim.devices and not self.node.state("simulated-modes.json"):
                self.wrong.append(f"{claim} has lost its time slices")


class Kubelet(threading.Thread):
    """Prepares some claims, repeats that, and unprepares them, until all kubelets have done enough operations."""

    def __init__(self, storm: Storm, seed: int) -> None:
        super().__init__(daemon=True)
        self._storm, self._random = storm, random.Random(seed)
        self._claims: list[Claim] = []

    def run(self) -> None:
        try:
            while self._storm.has_more():
                self._step()
            for claim in list(self._claims):
                self._unprepare(claim)
        except Exception as error:
            self._storm.verifier.wrong.append(f"the storm itself failed: {type(error).__name__}: {error}")

    def _step(self) -> None:
        chance = self._random.random()
        if not self._claims or (chance < 0.45 and len(self._claims) < 4):
            self._claims.append(self._storm.allocate(self._random))
            self._prepare(self._claims[-1])
        elif chance < 0.65:
            self._prepare(self._random.choice(self._claims))
        else:
            self._unprepare(self._random.choice(self._claims))

    def _prepare(self, claim: Claim) -> None:
        answer = self._call("Prepare", claim)
        if answer is None:
            return
        if answer.error:
            self._storm.verifier.refused(claim, answer.error)
            if claim.is_prepared and "device-in-use" in answer.error:
                self._storm.verifier.wrong.append(f"{claim} was prepared and is refused now: {answer.error}")
            return
        claim.is_prepared = True
        self._storm.verifier.prepared(claim, {device.device_name for device in answer.devices})

    def _unprepare(self, claim: Claim) -> None:
        self._storm.verifier.leaves(claim)
        claim.is_prepared = False
        if self._random.random() < 0.3:
            self._storm.delete(claim)
        until = time.monotonic() + 120
        while (answer := self._call("Unprepare", claim)) is None or answer.error:
            if answer is not None:
                self._storm.verifier.refused(claim, answer.error)
            if time.monotonic() > until:
                raise AssertionError(f"{claim} is not unprepared: {answer}")
        self._storm.verifier.unprepared(claim)
        self._claims.remove(claim)
        self._storm.delete(claim)

    def _call(self, verb: str, claim: Claim) -> Any:
        """Call one of the two agents; return None if it did not answer."""
        seconds = self._random.choice((0.3, 0.3, 0.6, 3.0))
        method, wire = f"Node{verb}Resources", v1.Claim(namespace="default", name=claim.name, uid=claim.uid)
        request = getattr(v1, f"{method}Request")(claims=[wire])
        rpc = self._random.choice(self._storm.node.channels).unary_unary(
            f"/{VERSIONS['v1.DRAPlugin']}/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=getattr(v1, f"{method}Response").FromString,
        )
        try:
            answer = rpc(request, timeout=seconds).claims[claim.uid]
        except grpc.RpcError as error:
            self._storm.broken[error.code().name.lower()] += 1
            time.sleep(0.05)
            return None
        code = answer.error.rpartition("[")[2].rstrip("]") if answer.error else "ok"
        self._storm.count(f"{verb.lower()}: {code}")
        return answer


class Storm:
    """So many operations on a node whose agents are killed again and again."""

    def __init__(self, here: Stage, operations: int, seed: int) -> None:
        self.node, self._operations, self._random = Node(here), operations, random.Random(seed)
        self.verifier = Verifier(self.node)
        self.done: Counter[str] = Counter()
        self.signals: Counter[str] = Counter()
        self.broken: Counter[str] = Counter()  # calls without an answer, which may have changed the node nevertheless
        self._mutex = threading.Lock()
        self._kubelets = [Kubelet(self, seed * 1000 + number) for number in range(KUBELETS)]

    def has_more(self) -> bool:
        return self.done.total() < self._operations and not self.verifier.wrong

    def count(self, what: str) -> None:
        with self._mutex:
            self.done[what] += 1

    def allocate(self, chance: random.Random) -> Claim:
        """Make a claim of devices that may be free or not."""
        devices = choose(chance)
        if chance.random() < 0.85:  # mostly the scheduler looks before it allocates
            taken = self.verifier.taken()
            while any(units_of(device) & taken for device in devices):
                devices = choose(chance)
        name = f"c-{chance.getrandbits(60):x}"
        requests = [
            {"name": f"r{i}", "exactly": {"deviceClassName": "x", "allocationMode": "ExactCount", "count": 1}}
            for i in range(len(devices))
        ]
        api, pool = self.node.here.api, f"{NODE}/{NVIDIA_DRIVER}"
        made = api.create(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": name, "namespace": "default"},
                "spec": {"devices": {"requests": requests}},
            }
        )
        results = [
            {"request": f"r{i}", "driver": NVIDIA_DRIVER, "pool": pool, "device": device, **share_of(device)}
            for i, device in enumerate(devices)
        ]
        made["status"] = {"allocation": {"devices": {"results": results}}}
        made = api.request("PUT", CLAIMS.path("default", name) + "/status", body=made)
        return Claim(made["metadata"]["uid"], name, devices)

    def delete(self, claim: Claim) -> None:
        path = CLAIMS.path("default", claim.name)
        if any(each["metadata"]["name"] == claim.name for each in self.node.here.api.items(CLAIMS)):
            self.node.here.api.request("DELETE", path)

    def run(self) -> None:
        for index in (0, 1):
            self.node.start(index)
        self.node.await_devices()
        for index in (0, 1):
            self.node.await_answer(index)
        for kubelet in self._kubelets:
            kubelet.start()
        reported_at = time.monotonic()
        while self.has_more():
            time.sleep(self._random.uniform(*CALM_SECONDS))
            index = self._random.randrange(2)
            number = self._random.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGKILL, signal.SIGTERM))
            self.node.end(index, number)
            self.signals[number.name] += 1
            self.node.start(index)
            self.node.await_answer(index)
            if time.monotonic() - reported_at > 10:
                reported_at = time.monotonic()
                print(f"{self.done.total()} operations, {self.signals.total()} signals", file=sys.stderr, flush=True)
        for kubelet in self._kubelets:
            kubelet.join(180)
        self._finish()

    def _finish(self) -> None:
        """End both agents; the next one undoes what they left half-done, and removes the folder when it ends."""
        for index in (0, 1):
            self.node.end(index, signal.SIGTERM)
        self.node.start(0)
        self.node.await_answer(0)  # an agent that ends before that leaves everything as it is
        deadline = time.monotonic() + 60
        while (left := self._left()) and time.monotonic() < deadline:
            time.sleep(0.1)
        if left:
            self.verifier.wrong.append(f"left behind: {left}")
        self.node.end(0, signal.SIGTERM)
        if self.node.data.exists():
            names = sorted(path.name for path in self.node.data.iterdir())
            self.verifier.wrong.append(f"the folder is still there: {names}")

    def _left(self) -> dict[str, Any]:
        found = {
            "files": sorted(path.name for path in self.node.here.kubelet.cdi_dir.iterdir()),
            "partitions": self.node.state("simulated-mig.json"),
            "modes": self.node.state("simulated-modes.json"),
        }
        return {what: there for what, there in found.items() if there}


def main() -> None:
    operations, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1
    started = time.monotonic()
    with stage("1.36") as here:
        storm = Storm(here, operations, seed)
        storm.run()
        if storm.verifier.wrong:
            keep_logs(here)
    report = {
        "operations": storm.done.total(),
        "seconds": round(time.monotonic() - started, 1),
        "answers": dict(sorted(storm.done.items())),
        "calls without an answer": dict(storm.broken),
        "signals": dict(storm.signals),
        "wrong": storm.verifier.wrong[:20],
    }
    print(json.dumps(report, indent=1))


def keep_logs(here: Stage) -> None:
    """Print the last lines of the agents' logs, for the person who investigates the failure."""
    for path in sorted(Path(here.folder).glob("agent-*.log"), key=lambda each: each.stat().st_mtime)[-3:]:
        print(f"--- {path.name}\n{path.read_text()[-6000:]}", file=sys.stderr)


if __name__ == "__main__":
    main()
