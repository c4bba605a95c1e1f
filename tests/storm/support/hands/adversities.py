"""Adversities: what else goes wrong on a node in a storm, for some seconds again and again.

A store that is locked, a disk that is full, no descriptors, processes that can't be seen, a clock that jumps, an API
server that refuses at random.
Each begins and ends in a thread of its own, and has ended when the storm settles. The files in which the simulated
hardware keeps its state are on the same disk as the agent's, but never grow into a new page of it.
"""

from __future__ import annotations

import random
import resource
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from dra_driver.simulator.http import HttpRequest, InjectedFaults
from dra_driver.simulator.shapes import ApiRefusal
from tests.storm.support.hands.clock import Clock
from tests.storm.support.node.agent_program import BLINDNESS, LIST, PROCESS
from tests.storm.support.sandbox import mount
from tests.support.small_disk import fill

CALM_S = (0.5, 3.0)


class Adversity:
    """Nothing else goes wrong. Others say what does, in `once`."""

    name = "none"
    unrepaired_s = 5.0, 10.0  # how long a GPU that was given up shows no fault before somebody has repaired it
    keeps_hours = True  # whether the hours of namespaces can be compared with the storm's own clock

    def __init__(self, seed: int = 1) -> None:
        self._random = random.Random(seed)

    def prepare(self, folder: Path, disks: list[Path]) -> None:
        """Take what is needed before anything is written: a folder for own files, and the folders that agents fill."""

    def environment(self) -> Mapping[str, str]:
        """Return the variables that agents need."""
        return {}

    @contextmanager
    def once(self, storm: Any) -> Iterator[float]:
        """Be in force during this context, for as many seconds as it yields."""
        del storm
        yield 1.0

    def run(self, storm: Any) -> None:
        """Begin and end it until the storm has had enough."""
        while storm.has_more():
            time.sleep(self._random.uniform(*CALM_S))
            with self.once(storm) as seconds:
                time.sleep(seconds)

    def explains(self, error: str) -> bool:
        """Return whether a refusal may be due to it."""
        del error
        return type(self) is not Adversity


class LockedStore(Adversity):
    """Another process has one of the stores locked for 5 s.

    While a GPU is given up, those are locked that say so, and new agents have to do without them.
    """

    name = "a store is locked for 5 s"
    unrepaired_s = 20.0, 40.0  # new agents that took it for healthy would offer it before that
    _CASES = ("state.db", "remediation.db")

    @contextmanager
    def once(self, storm: Any) -> Iterator[float]:
        is_given_up = storm.outages.has_given_up()
        stores = sorted(storm.data.glob("*.db"))
        chosen = [one for one in stores if one.name in self._CASES] if is_given_up else [self._random.choice(stores)]
        with ExitStack() as stack:
            for store in chosen:
                connection = stack.enter_context(closing(sqlite3.connect(store, timeout=5, isolation_level=None)))
                with suppress(sqlite3.Error):  # it may be gone
                    connection.execute("BEGIN EXCLUSIVE")
            if is_given_up:
                storm.killer.kill_both()
            yield 5.0


class FullDisk(Adversity):
    """The disks of the agent's folders are full, to the last byte."""

    name = "the disk is full"

    def prepare(self, folder: Path, disks: list[Path]) -> None:
        del folder
        self._disks = disks
        for disk in disks:
            mount("tmpfs", disk, "tmpfs", 0, "size=16m,mode=0750")

    @contextmanager
    def once(self, storm: Any) -> Iterator[float]:
        del storm
        ballast = [fill(disk) for disk in self._disks if disk.is_dir()]
        try:
            yield self._random.uniform(0.5, 3.0)
        finally:
            for path in ballast:
                path.unlink(missing_ok=True)


class NoDescriptors(Adversity):
    """An agent has as many open files as it may have."""

    name = "no descriptors"

    @contextmanager
    def once(self, storm: Any) -> Iterator[float]:
        pid = self._random.choice(storm.agents.slots).process.pid
        _, hard = before = resource.getrlimit(resource.RLIMIT_NOFILE)
        with suppress(OSError):  # the agent may have ended
            highest = max((int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir()), default=hard - 1)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (highest + 1, hard))
        try:
            yield self._random.uniform(0.5, 3.0)
        finally:
            with suppress(OSError):
                resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


class BlindAgents(Adversity):
    """The agents can't see the list of processes, or none of them, while containers live on and have GPUs open."""

    name = "processes can't be seen"
    _KINDS = (f"{LIST} EMFILE", f"{PROCESS} EMFILE", f"{PROCESS} EACCES")

    def prepare(self, folder: Path, disks: list[Path]) -> None:
        del disks
        self._file = folder / "blindness"
        self._file.touch()

    def environment(self) -> Mapping[str, str]:
        return {BLINDNESS: str(self._file)}

    @contextmanager
    def once(self, storm: Any) -> Iterator[float]:
        del storm
        self._file.write_text(self._random.choice(self._KINDS))
        try:
            yield self._random.uniform(1.0, 4.0)
        finally:
            self._file.write_text("")


class JumpingClock(Adversity):
    """The clock of the agents, not that of their waits, jumps by an hour."""

    name = "the clock jumps"
    keeps_hours = False

    def prepare(self, folder: Path, disks: list[Path]) -> None:
        del disks
        self._clock = Clock(folder)

    def environment(self) -> Mapping[str, str]:
        return self._clock.environment()

    @contextmanager
    def once(self, storm: Any) -> Iterator[float]:
        del storm
        self._clock.set(self._random.choice((3600, -3600)))
        try:
            yield self._random.uniform(0.5, 5.0)
        finally:
            self._clock.set(0)


class RefusingServer(Adversity):
    """The API server answers many requests of the agents with an error."""

    name = "the API server refuses"

    @contextmanager
    def once(self, storm: Any) -> Iterator[float]:
        kept, storm.api.faults = storm.api.faults, _Refusals(self._random)
        try:
            yield self._random.uniform(1.0, 5.0)
        finally:
            storm.api.faults = kept


class _Refusals(InjectedFaults):
    """Refuses at random."""

    _STATUSES = (401, 403, 409, 422, 429, 500)

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._chance = chance

    def apply(self, request: HttpRequest) -> bool:
        del request
        if self._chance.random() < 0.5:
            status = self._chance.choice(self._STATUSES)
            retry_after_s = 1 if status == 429 else 0
            raise ApiRefusal(status, "Injected", "injected by the storm", retry_after_s=retry_after_s)
        return False


ADVERSITIES: Mapping[str, type[Adversity]] = {
    "none": Adversity,
    "locked": LockedStore,
    "full": FullDisk,
    "descriptors": NoDescriptors,
    "blind": BlindAgents,
    "clock": JumpingClock,
    "api": RefusingServer,
}
