"""Killer: a thread that ends agents at the worst moments, and starts them again.

Most kills come a few milliseconds after a call was sent to an agent. What the agent had begun and not ended when it
died is read from its journal: only that makes a kill one inside a call.
"""

from __future__ import annotations

import random
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable

from tests.storm.support.hands.calls import Calls
from tests.storm.support.node.agents import Agent, Agents

INSIDE = "kills inside calls"
CALM_S = (0.0, 0.1)  # between two kills
WITHIN_S = {"Prepare": (0.0, 0.015), "Unprepare": (0.0, 0.006)}  # after a call was sent
_ACTION = re.compile(rb"device=(\S+)[^\n]* step=(drained|nvml-let-go)")
ACTION_KILLED = {b"drained": 0.2, b"nvml-let-go": 0.7}
RUSH_S = 2.0  # how long claims want the GPU on which the killed agent was about to act
WORKING_S = 0.1  # a call that was sent longer ago waits for something


class Killer:
    """Ends the agents of one storm. One thread runs each of its two methods."""

    def __init__(
        self,
        agents: Agents,
        calls: Calls,
        seed: int,
        *,
        has_more: Callable[[], bool],
        rush: Callable[[str, float], None],
    ) -> None:
        self._agents, self._calls, self._random, self._has_more = agents, calls, random.Random(seed), has_more
        self._rush = rush
        self._turn, self._chance = threading.Lock(), random.Random(seed + 1)
        self.signals: Counter[str] = Counter()
        self.inside: Counter[str] = Counter()

    def run(self) -> None:
        """End agents until there is enough."""
        while self._has_more():
            time.sleep(self._random.uniform(*CALM_S))
            chance = self._random.random()
            if chance < 0.10:
                self._upgrade(self._random.randrange(2))
            elif chance < 0.20:
                self._end_agent(self._agents.slots[self._random.randrange(2)], signal.SIGTERM)
            elif chance < 0.28:
                self.kill_both()
            else:
                self._kill_inside_call()

    def run_at_actions(self) -> None:
        """Kill agents that are about to act on a GPU: they have its devices' locks, and nothing uses the GPU."""
        read: dict[Agent, int] = {}
        while self._has_more():
            for agent in tuple(self._agents.slots):
                with agent.log.open("rb") as log:
                    log.seek(read.get(agent, 0))
                    text = log.read()
                read[agent] = read.get(agent, 0) + len(text)
                actions = _ACTION.findall(text)
                if actions and self._chance.random() < ACTION_KILLED[actions[-1][1]]:
                    agent.process.send_signal(signal.SIGKILL)  # at once, whomever the other thread ends now
                    self._rush(actions[-1][0].decode(), RUSH_S)
                    self._end_agent(agent, signal.SIGKILL)
                    self.signals["of them before an action"] += 1
            time.sleep(0.0005)

    def _kill_inside_call(self) -> None:
        until = time.monotonic() + 2.0
        while time.monotonic() < until and self._has_more():
            found = [call for call in self._calls.open_calls() if time.monotonic() - call.began < WORKING_S]
            verb = self._random.choice(("Prepare", "Unprepare"))
            if chosen := [call for call in found if call.verb == verb]:
                agent = self._random.choice(chosen).agent
                break
            time.sleep(0.001)
        else:
            return
        time.sleep(self._random.uniform(*WITHIN_S[verb]))
        self._end_agent(agent, signal.SIGKILL)

    def kill_both(self) -> None:
        """Kill both agents at the same time, and wait until the next ones serve."""
        with self._turn:
            threads = [threading.Thread(target=self._end, args=(index, signal.SIGKILL)) for index in (0, 1)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    def _upgrade(self, index: int) -> None:
        with self._turn:
            self.signals["upgrade"] += 1
            self._agents.upgrade(index)

    def _end_agent(self, agent: Agent, number: signal.Signals) -> None:
        """End an agent and start it again, unless another thread has done so."""
        with self._turn:
            if agent in self._agents.slots:
                self._end(self._agents.slots.index(agent), number)

    def _end(self, index: int, number: signal.Signals) -> None:
        agent = self._agents.slots[index]
        young = {(call.verb, call.claim.uid) for call in self._calls.open_calls() if _is_young(call.began)}
        self._agents.end(agent, number)
        self.signals[number.name] += 1
        if number is signal.SIGKILL:
            self._count(agent, young)
        self._agents.replace(index, uid=agent.uid)

    def _count(self, agent: Agent, young: set[tuple[str, str]]) -> None:
        unfinished = agent.unfinished()
        self.inside[INSIDE] += bool(unfinished)
        self.inside["kills inside calls that work, not wait"] += bool(unfinished & young)
        for verb in ("Prepare", "Unprepare"):
            self.inside[f"kills inside {verb}"] += any(one == verb for one, _ in unfinished)


def _is_young(began: float) -> bool:
    return time.monotonic() - began < WORKING_S
