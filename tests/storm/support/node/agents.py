"""The agents of a storm's node: two of them, started, killed, replaced and scraped.

A slot has one agent after another. A restarted agent keeps the UID of its pod; an upgraded one comes with a new UID,
and the old one ends only when the new one serves. What an agent has begun and not ended is read from its journal.
"""

from __future__ import annotations

import http.client
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from tests.storm.support.node.agent_program import JOURNAL
from tests.support.agents.warm_agents import AgentForker, WarmAgent

SERVES_WITHIN_S = 90.0
_CHANNEL = [(f"grpc.{name}_reconnect_backoff_ms", 50) for name in ("initial", "min")]
_CHANNEL += [("grpc.max_reconnect_backoff_ms", 100), ("grpc.enable_http_proxy", 0)]


@dataclass(eq=False)
class Agent:
    """One agent process, and the channel to its socket."""

    uid: str
    process: WarmAgent
    journal: Path
    log: Path
    channel: grpc.Channel = field(repr=False)
    is_ending: bool = False

    def unfinished(self) -> set[tuple[str, str]]:
        """Return the calls that have begun and not ended, by verb and claim."""
        open_calls: dict[tuple[str, str], int] = {}
        for line in self.journal.read_text().splitlines():
            what, verb, claim = line.split()
            open_calls[verb, claim] = open_calls.get((verb, claim), 0) + (1 if what == "begun" else -1)
        return {call for call, count in open_calls.items() if count > 0}

    def port(self) -> int:
        """Return the port of its metrics; 0 while it is not known."""
        found = re.search(r"status page open .*:(\d+)", self.log.read_text(errors="replace"))
        return int(found[1]) if found else 0

    def scrape(self) -> str | None:
        """Return the page of metrics; None if the agent does not answer."""
        if not (port := self.port()):
            return None
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/metrics")
            answer = connection.getresponse()
            return answer.read().decode() if answer.status == 200 else None
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()


class MpsSupervisor:
    """The program that keeps the MPS daemons of a node; these live on when it ends."""

    def __init__(self, folder: Path, plugins_dir: Path, hardware: list[str]) -> None:
        command = [sys.executable, "-m", "dra_driver", "mps", "--kubelet-plugins-directory-path", str(plugins_dir)]
        with (folder / "supervisor").open("wb") as log:
            self._process = subprocess.Popen([*command, *hardware], stdout=log, stderr=log)

    def end(self, number: signal.Signals) -> None:
        """Send a signal and wait for the end."""
        self._process.send_signal(number)
        self._process.wait(60)


class Agents:
    """The agents of one node. Slots are changed by one thread at a time, and read by many."""

    def __init__(self, folder: Path, data: Path, flags: list[str], environment: Mapping[str, str]) -> None:
        self._folder, self._data, self._flags, self._environment = folder, data, flags, dict(environment)
        self._forker = AgentForker("tests.storm.support.node.agent_program", self._environment)
        self._count = 0
        self.pids: set[int] = set()  # of all agents so far
        self.starts: list[float] = []  # how long each took until it served, in seconds
        self.lock = threading.Lock()
        self.slots: list[Agent] = []

    def start(self, uid: str = "") -> Agent:
        """Start an agent; one without a UID is a new pod's."""
        uid, self._count = uid or str(uuid.uuid4()), self._count + 1
        log, journal = (self._folder / f"{name}-{self._count}" for name in ("agent", "journal"))
        journal.touch()
        words = ["agent", *self._flags, "--pod-uid", uid]
        process = self._forker.start(words, log, {**self._environment, JOURNAL: str(journal)})
        self.pids.add(process.pid)
        channel = grpc.insecure_channel(f"unix:{self._data}/dra-{uid}.sock", options=_CHANNEL)
        return Agent(uid, process, journal, log, channel)

    def await_serving(self, agent: Agent) -> None:
        """Wait until an agent answers. Raises: AssertionError if it ends or does not answer in time."""
        began = time.monotonic()
        while True:
            try:
                grpc.channel_ready_future(agent.channel).result(timeout=2)
            except grpc.FutureTimeoutError:
                if agent.process.poll() is not None or time.monotonic() > began + SERVES_WITHIN_S:
                    how = f"has ended ({agent.process.poll()})" if agent.process.poll() is not None else "hangs"
                    raise AssertionError(f"an agent {how}:\n{agent.log.read_text()[-3000:]}") from None
            else:
                self.starts.append(time.monotonic() - began)
                return

    def end(self, agent: Agent, number: signal.Signals) -> None:
        """Send a signal and wait for the end."""
        agent.is_ending = True
        agent.process.send_signal(number)
        agent.process.wait(60)

    def replace(self, index: int, *, uid: str = "") -> Agent:
        """Start an agent in a slot whose agent has ended, and wait until it serves."""
        old = self.slots[index]
        agent = self.start(uid)
        self.await_serving(agent)
        self.slots[index] = agent
        old.channel.close()
        return agent

    def upgrade(self, index: int) -> None:
        """Replace a slot's agent by one of another pod, which serves before the old one ends."""
        old = self.slots[index]
        new = self.start()
        self.await_serving(new)
        self.slots[index] = new
        self.end(old, signal.SIGTERM)
        old.channel.close()

    def close(self) -> None:
        for agent in self.slots:
            if agent.process.poll() is None:
                self.end(agent, signal.SIGKILL)
        self._forker.close()
