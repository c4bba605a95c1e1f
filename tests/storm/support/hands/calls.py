"""The kubelet's calls: made with either of the two agents, and counted, also those that a kill ended.

In: a verb and a claim. Out: the answer, or None if there was none. A call contends if another claim has, wants or still
uses a device of its claim when it begins. Calls that met no agent are not counted as made.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc

from dra_driver.node._proto import dra_v1_pb2 as v1
from dra_driver.node.kubelet.methods import VERSIONS
from tests.storm.support.node.agents import Agent, Agents
from tests.storm.support.node.cluster import Claim
from tests.storm.support.node.devices import Unit

_SERVICE = VERSIONS["v1.DRAPlugin"]


@dataclass(eq=False)
class Call:
    """A call that is under way."""

    verb: str
    claim: Claim
    agent: Agent
    began: float


class Calls:
    """All calls of a storm. Any thread may make one."""

    def __init__(self, agents: Agents, used: Callable[[Claim], set[Unit]]) -> None:
        self._agents, self._used = agents, used
        self._mutex = threading.Lock()
        self._open: set[Call] = set()
        self.done: Counter[str] = Counter()
        self.contending = 0
        self.made = 0

    def open_calls(self) -> list[Call]:
        """Return the calls that are under way."""
        with self._mutex:
            return list(self._open)

    def make(self, chance: random.Random, verb: str, claim: Claim) -> Any:
        """Call one of the agents about one claim; return its answer for the claim, None if there is none."""
        agents = [one for one in self._agents.slots if not one.is_ending]
        agent = chance.choice(agents or self._agents.slots)
        method, wire = f"Node{verb}Resources", v1.Claim(namespace=claim.namespace, name=claim.name, uid=claim.uid)
        rpc = agent.channel.unary_unary(
            f"/{_SERVICE}/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=getattr(v1, f"{method}Response").FromString,
        )
        request = getattr(v1, f"{method}Request")(claims=[wire])
        with self._open_call(Call(verb, claim, agent, time.monotonic())) as contends:
            try:
                answer = rpc(request, timeout=chance.choice((0.3, 0.6, 3.0, 3.0))).claims[claim.uid]
            except (grpc.RpcError, ValueError) as error:  # ValueError: the channel of an agent that was replaced
                code = error.code().name.lower() if isinstance(error, grpc.RpcError) else "closed"
                self._count(f"{verb}: no answer ({code})", contends, is_made=code == "deadline_exceeded")
                time.sleep(0.05)
                return None
        self._count(f"{verb}: {answer.error.rpartition('[')[2].rstrip(']') if answer.error else 'ok'}", contends)
        return answer

    @contextmanager
    def _open_call(self, call: Call) -> Iterator[bool]:
        """Yield whether the call contends."""
        used = self._used(call.claim)
        with self._mutex:
            used |= {unit for each in self._open if each.claim is not call.claim for unit in each.claim.units}
            self._open.add(call)
        try:
            yield bool(call.claim.units & used)
        finally:
            with self._mutex:
                self._open.discard(call)

    def _count(self, what: str, contends: bool, *, is_made: bool = True) -> None:
        with self._mutex:
            self.done[what] += 1
            self.made += is_made
            self.contending += is_made and contends
