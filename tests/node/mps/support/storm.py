"""A storm: agents, supervisors and daemons are killed at any moment while hostile clients attack them.

    python -m tests.node.mps.support.storm OPERATIONS [SEED]

A program of its own (test_storm starts it), because it forks. Agents are children of it that prepare or unprepare one
claim and are often killed on the way; the supervisor is the real process, with file systems and cgroups of its own
where they are permitted. After each operation the storm checks what must never be lost: imitators of daemons still run
in their own cgroup, clients of undamaged devices are served, and prepared claims stay prepared. In the end all claims
are unprepared, and nothing may be left. Prints one JSON object: the operations by kind, and what was found wrong.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from dra_driver.base.wire import MpsSettings
from dra_driver.node.mps.client import MpsClient, socket_path
from dra_driver.node.mps.daemon_folder import key_of
from dra_driver.node.prepare.repair import Reaper
from dra_driver.node.prepare.steps import sharing_modes
from tests.support.mps.fake_mps import FakeClient
from tests.support.mps.parts import Supervisor, cgroup_of, cgroup_tree, imitator, processes_below, short_folder
from tests.support.plugin.killing import in_child
from tests.support.plugin.mig_parts import OTHER, WHOLE
from tests.support.plugin.parts import DRIVER, Rig
from tests.support.plugin.sharing_parts import SharingRig, replica

CLAIMS = {**{f"a{number}": WHOLE for number in range(4)}, **{f"b{number}": OTHER for number in range(4)}}
WEIGHTS = {
    "prepare": 30,
    "unprepare": 30,
    "prepare, agent killed": 12,
    "unprepare, agent killed": 12,
    "agent repairs": 3,
    "supervisor killed": 2,
    "daemon killed": 3,
    "hostile": 50,
}
KILL_WITHIN_S = 0.12
DAMAGED_READY_S = 0.3  # how long to wait for a channel that its own client has broken
Rig.patience_s = 60.0


class StormRig(SharingRig):
    """A plugin whose supervisor is the real one."""

    def restart(self):
        self.supervisor = MpsClient(socket_path(self.root / DRIVER))
        return super().restart()


class Storm:
    """One node under attack. `damaged` are the devices whose channels their own clients have broken."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.random = folder, random.Random(seed)
        tree = cgroup_tree()
        self.cgroup = tree / folder.name if tree else None
        flags = ["--mps-cgroup", str(self.cgroup)] if self.cgroup else []
        self.supervisor = Supervisor(folder, *flags, hardware=["--hardware", "simulated:any"])
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.prepared: set[str] = set()
        self.unsure: set[str] = set()  # claims in whose last call the agent was killed or failed
        self.damaged: set[str] = set()
        self.clients: dict[str, FakeClient] = {}
        self.uuids: dict[str, str] = {}
        self.imitators: list[tuple[subprocess.Popen[bytes], str]] = []
        self.listening: list[socket.socket] = []

    def run(self, operations: int) -> None:
        """Do so many operations, then check what is left."""
        with ExitStack() as stack:
            self.supervisor.begin()
            stack.callback(self.supervisor.close)
            rig = self.rig()
            self.uuids = {name: rig.gpu(index).uuid for index, name in enumerate((WHOLE, OTHER))}
            rig.close()
            for name in (WHOLE, OTHER):
                process = stack.enter_context(imitator(DRA_DRIVER_MPS=str(self.at(name))))
                self.imitators.append((process, cgroup_of(process.pid)))
            kinds, weights = list(WEIGHTS), list(WEIGHTS.values())
            for _ in range(operations):
                self.do(self.random.choices(kinds, weights)[0])
                if len(self.wrong) > 10:
                    break
            self.finish()

    def do(self, kind: str) -> None:
        claim = self.random.choice(list(CLAIMS))
        self.counts[kind] += 1
        verb, _, how = kind.partition(", ")
        if verb in {"prepare", "unprepare"}:
            self.call(verb, claim, is_killed=bool(how))
        elif kind == "agent repairs":
            self.expect_none(kind, in_child(self.repair)[1])
        elif kind == "supervisor killed":
            self.supervisor.end(signal.SIGKILL)
            self.supervisor.begin()
        elif kind == "daemon killed":
            self.kill_daemon(CLAIMS[claim])
        else:
            self.harm(CLAIMS[claim])
        self.check(kind)

    # Agents

    def rig(self) -> StormRig:
        rig = StormRig(self.folder, MpsSettings(50, multi_user=True))
        for number in range(4):
            rig.allocate(f"a{number}", replica(number))
            rig.allocate_share(f"b{number}", f"s{number}")
        return rig

    def call(self, verb: str, claim: str, *, is_killed: bool) -> None:
        was_served = self.is_held(CLAIMS[claim])
        work = partial(self.work, verb, claim)
        killed_after_s = self.random.uniform(0, KILL_WITHIN_S) if is_killed else None
        status, error = in_child(work, killed_after_s)
        is_hurt = CLAIMS[claim] in self.damaged
        if is_killed and os.WIFSIGNALED(status):
            self.unsure.add(claim)
            return
        if error and not (verb == "prepare" and is_hurt):
            self.wrong.append(f"{verb} of {claim}: {error}")
        if error:
            self.unsure.add(claim)
            return
        self.unsure.discard(claim)
        if verb == "prepare":
            self.prepared.add(claim)
            self.connect(CLAIMS[claim], is_new=not was_served)
        else:
            self.prepared.discard(claim)
            self.leave(CLAIMS[claim])

    def work(self, verb: str, claim: str) -> None:
        if CLAIMS[claim] in self.damaged:
            sharing_modes.READY_SECONDS = DAMAGED_READY_S
        rig = self.rig()
        rig.prepare(claim) if verb == "prepare" else rig.unprepare(claim)

    def repair(self) -> None:
        sharing_modes.READY_SECONDS = DAMAGED_READY_S
        rig = self.rig()
        with suppress(Exception):  # a damaged channel; what is not undone here must be undone in the end
            rig.repair.run()
        Reaper(rig.repair, rig.store, driver=DRIVER).reap()

    # Clients

    def at(self, name: str) -> Path:
        return self.folder / DRIVER / "mps/d" / key_of(self.uuids[name])

    def is_held(self, name: str) -> bool:
        """Return whether a claim holds the device for certain, because no agent was killed in its last call."""
        return any(CLAIMS[claim] == name for claim in self.prepared - self.unsure)

    def connect(self, name: str, *, is_new: bool) -> None:
        """Connect a client to a device. It replaces the present one if the daemon may be a new one."""
        if is_new and (client := self.clients.pop(name, None)):
            client.end()
        if name not in self.clients and name not in self.damaged:
            self.clients[name] = FakeClient(self.at(name) / "pipe")

    def leave(self, name: str) -> None:
        """If the last claim has gone, check that nothing of the device is left, and count it as undamaged."""
        if not any(CLAIMS[claim] == name for claim in self.prepared | self.unsure):
            if self.at(name).exists():
                self.wrong.append(f"{name} is held by no claim, but its folder is left")
            self.damaged.discard(name)
            if client := self.clients.pop(name, None):
                client.end()

    def kill_daemon(self, name: str) -> None:
        with suppress(OSError, ValueError, KeyError, TypeError):
            state = json.loads((self.at(name) / "state.json").read_text())
            if state["pid"] in processes_below(self.folder):
                os.kill(state["pid"], signal.SIGKILL)

    def harm(self, name: str) -> None:
        acts: list[Callable[[Path], None]] = [imitate, fifo, fill, junk, deepen, flood, self.link, self.listen]
        act = self.random.choice(acts)
        if not self.at(name).exists():
            return
        if act in {self.link, self.listen}:
            self.damaged.add(name)
            if client := self.clients.pop(name, None):
                client.end()
        with suppress(OSError):
            if act is imitate:
                path = self.at(name) / "pipe/nvidia-cuda-mps-control.pid"
                path.unlink(missing_ok=True)
                path.write_text(f"{self.imitators[0][0].pid}\n")
            else:
                act(self.at(name) / "pipe")

    def link(self, pipe: Path) -> None:
        other = OTHER if pipe == self.at(WHOLE) / "pipe" else WHOLE
        (pipe / "control").unlink(missing_ok=True)
        (pipe / "control").symlink_to(self.at(other) / "pipe/control")

    def listen(self, pipe: Path) -> None:
        (pipe / "control").unlink(missing_ok=True)
        false_daemon = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        false_daemon.bind(str(pipe / "control"))
        false_daemon.listen(1)
        self.listening = [false_daemon, *self.listening[:9]]

    # What must never be lost

    def check(self, after: str) -> None:
        for process, cgroup in self.imitators:
            if process.poll() is not None or cgroup_of(process.pid) != cgroup:
                self.wrong.append(f"after {after}: an imitator was moved or ended ({process.returncode})")
        for name, client in list(self.clients.items()):
            if not client.works():
                del self.clients[name]
                if self.is_held(name):
                    self.wrong.append(f"after {after}: a client of {name} was cut off")

    def finish(self) -> None:
        """Check with a new agent that prepared claims are recorded, and that nothing is left after the last one."""
        rig = self.rig()
        states = rig.states()
        rig.close()
        lost = {claim for claim in self.prepared - self.unsure if states.get(claim) != "prepared"}
        if lost:
            self.wrong.append(f"lost: {sorted(lost)} of {states}")
        for claim in CLAIMS:
            self.expect_none(f"last unprepare of {claim}", in_child(partial(self.work, "unprepare", claim))[1])
        self.expect_none("the last check", in_child(self.check_empty)[1])
        for pid in processes_below(self.folder):
            self.wrong.append(f"process {pid} is left")
        if (left := list((self.folder / DRIVER / "mps/d").iterdir())) != []:
            self.wrong.append(f"left: {left}")
        if str(self.folder) in Path("/proc/self/mountinfo").read_text():
            self.wrong.append("a mount is left")
        self.supervisor.end()
        if self.cgroup and self.cgroup.exists():
            self.wrong += [f"cgroup {path} is left" for path in self.cgroup.glob("*/")]
            self.cgroup.rmdir()

    def check_empty(self) -> None:
        rig = self.rig()
        rig.repair.run()
        assert rig.effects() == {}, rig.effects()
        rig.assert_empty()
        assert rig.supervisor.running(deadline_s=60) == ()
        assert set(rig.compute_modes()) == {"DEFAULT"}, rig.compute_modes()

    def expect_none(self, what: str, error: str) -> None:
        if error:
            self.wrong.append(f"{what}: {error}")


def imitate(_pipe: Path) -> None:
    """Stand for a write of an imitator's pid into the pid file, which `harm` does because it needs the pid."""


def fifo(pipe: Path) -> None:
    path = pipe / "nvidia-cuda-mps-control.pid"
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def fill(pipe: Path) -> None:
    with (pipe / "full").open("wb") as file:
        for _ in range(5):
            file.write(bytes(1 << 18))


def junk(pipe: Path) -> None:
    shm = pipe.with_name("shm")
    for number in range(5):
        (shm / f"secret-{number}").write_text("of a pod")
    (shm / "link").symlink_to("/etc")


def deepen(pipe: Path) -> None:
    path = pipe
    for _ in range(60):
        path /= "d"
        path.mkdir()


def flood(pipe: Path) -> None:
    for _ in range(20):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(1)
            connection.connect(str(pipe / "control"))
            connection.sendall(b"x" * 100 + b"\n")


def main(arguments: list[str]) -> None:
    operations = int(arguments[0])
    seed = int(arguments[1]) if len(arguments) > 1 else random.randrange(1 << 30)
    began = time.monotonic()
    with short_folder() as folder:
        storm = Storm(folder, seed)
        storm.run(operations)
    report = {"seed": seed, "operations": sum(storm.counts.values()), "seconds": round(time.monotonic() - began)}
    print(json.dumps({**report, "counts": storm.counts, "wrong": storm.wrong}))


if __name__ == "__main__":
    main(sys.argv[1:])
