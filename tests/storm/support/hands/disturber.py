"""Disturber: a thread that is the node's hardware and its administrators.

Faults come and end: by themselves, by a reset, or never; GPUs are cordoned, lost, partitioned in another way, or shared
by other rules. Each outage is noted before it begins, and before it ends.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dra_driver.base.errors import InputError
from dra_driver.node.health.cordons import Cordon, CordonFile
from dra_driver.node.health.monitor import ForgetFile
from dra_driver.node.health.remediation import RemediationRequest, RequestFile
from tests.storm.support.eyes.outages import Outage, Outages
from tests.storm.support.node.devices import ADDRESSES, CUT, HOT, gpu_name
from tests.storm.support.node.machine import Machine

CALM_S = (0.1, 0.8)
PERSISTS_S = 120.0  # a store is locked while new agents start
MOST_OUT = 2  # GPUs of four that are out at the same time
CURED_WITHIN_S, CORDONED_S, BRIEF_S, DRAINED_S = 15.0, (0.3, 3.0), (0.0, 3.0), (0.5, 2.5)


@dataclass(eq=False)
class Disturbance:
    """An outage, and when and how it ends."""

    outage: Outage
    until: float
    end: Callable[[], None]
    section: dict[str, Any] | None = None
    is_hopeless: bool = False  # no reset cures it
    is_known: bool = False  # to a person, who gives the GPU up


class Disturber:
    """Disturbs one machine. Only one thread calls it."""

    def __init__(
        self,
        machine: Machine,
        outages: Outages,
        seed: int,
        *,
        has_more: Callable[[], bool],
        did: Callable[[str], None],
        drain: Callable[[str, float], None],
        healthy: Callable[[], set[str]],
        unrepaired_s: tuple[float, float],
    ) -> None:
        self._machine, self._outages, self._random = machine, outages, random.Random(seed)
        self._has_more, self._did, self._drain = has_more, did, drain
        self._healthy, self._unrepaired_s = healthy, unrepaired_s
        self._now: list[Disturbance] = []
        self._cordons, self._requests = CordonFile(machine.data), RequestFile(machine.data)
        self._forgotten = ForgetFile(machine.data)

    def run(self) -> None:
        """Disturb until there is enough, then end every outage."""
        while self._has_more():
            time.sleep(self._random.uniform(*CALM_S))
            self._end_due(time.monotonic())
            self._random.choice((self._fault, self._fault, self._cordon, self._rules, self._geometry))()
        self._end_due(float("inf"))

    def end_all(self) -> None:
        """Ask again for what an agent may have been killed over."""
        for address in ADDRESSES:
            self._repaired(address)

    def _repaired(self, address: str) -> None:
        """Act as a person who has repaired a GPU, so that its fault does not count as one that comes and goes."""
        _persist(lambda: self._requests.ask(address, RemediationRequest.DONE))
        _persist(lambda: self._forgotten.ask(address))

    # -- what is done

    def _fault(self) -> None:
        address = self._free_address()
        if address is None:
            return
        kind = self._random.choice(("cured", "cured", "brief", "hopeless", "given up", "lost"))
        margin, now = self._machine.unique_margin(), time.monotonic()
        section: dict[str, Any] = {"recoveryAction": 1, "thermalMargin": margin}
        seconds = CURED_WITHIN_S
        if kind in ("hopeless", "given up"):
            section["reset"] = "fails"
        elif kind == "lost":
            section = {"lost": True}
            seconds = self._random.uniform(*BRIEF_S)
        elif kind == "brief":
            seconds = self._random.uniform(*BRIEF_S)
        mark = f"thermal_margin={margin}," if kind in ("cured", "brief") else ""  # either may be cured by a reset
        # A taint of the GPU's last outage may still come, late, while a store is locked.
        keys = ("gpu-lost",) if kind == "lost" else ("needs-reset", "remediation")
        outage = self._outages.begin(Outage(address, f"a fault ({kind})", mark, keys))
        disturbance = Disturbance(outage, now + seconds, lambda: self._cure(disturbance), section)
        disturbance.is_hopeless, disturbance.is_known = kind in ("hopeless", "given up"), kind == "given up"
        self._now.append(disturbance)
        if kind in ("cured", "hopeless"):  # it is acted on soon
            self._drain(address, self._random.uniform(*DRAINED_S))
        self._set_health()
        self._did("fault begins")

    def _cordon(self) -> None:
        address = self._free_address()
        if address is None:
            return
        outage = self._outages.begin(Outage(address, "a cordon", keys=("cordoned",)))
        name = gpu_name(address)
        _persist(lambda: self._cordons.add(Cordon(name, "storm", time.time())))
        until = time.monotonic() + self._random.uniform(*CORDONED_S)
        self._now.append(Disturbance(outage, until, lambda: self._uncordon(name)))
        self._did("cordon")

    def _rules(self) -> None:
        self._machine.set_rules(self._random.choice((2, 4, 8)), self._random.choice(("Short", "Medium", "Long")))
        self._did("rules change")

    def _geometry(self) -> None:
        if self._machine.is_static:  # whoever changes it often drains a GPU first, and uses it again at once
            self._drain(self._random.choice((HOT, CUT)), self._random.uniform(*DRAINED_S))
            self._machine.set_geometry(self._random.randrange(5), self._random.randrange(5))
            self._did("geometry changes")

    # -- how it ends

    def _end_due(self, now: float) -> None:
        for one in self._now:
            if one.is_hopeless and one.outage.is_given_up:
                self._fade(one, now)
            elif one.is_hopeless and one.is_known and one.outage.was_seen:
                self._give_up(one.outage.address)
        for one in [one for one in self._now if now >= one.until or self._is_settled(one)]:
            self._outages.end(one.outage)
            self._now.remove(one)
            one.end()

    def _give_up(self, address: str) -> None:
        """Ask the agents, which may not know of the fault yet, to try nothing more."""
        _persist(lambda: self._requests.ask(address, RemediationRequest.GIVE_UP))

    def _fade(self, one: Disturbance, now: float) -> None:
        """Make a GPU that was given up show its fault no longer: only what the agents remember keeps it out now."""
        one.is_hopeless, one.section, one.until = False, None, now + self._random.uniform(*self._unrepaired_s)
        self._set_health()
        self._did("fault fades")

    def _is_settled(self, one: Disturbance) -> bool:
        """Return whether a fault was cured by a reset; most of these end a while later."""
        mark = one.outage.mark
        is_cured = bool(mark) and mark in self._machine.resets().get(one.outage.address, "")
        return is_cured and self._random.random() < 0.2

    def _cure(self, disturbance: Disturbance) -> None:
        self._set_health()
        self._repaired(disturbance.outage.address)
        self._did("fault ends")

    def _uncordon(self, name: str) -> None:
        _persist(lambda: self._cordons.remove(name))
        self._did("uncordon")

    def _set_health(self) -> None:
        sections = {one.outage.address: one.section for one in self._now if one.section is not None}
        self._machine.set_health(sections)

    def _free_address(self) -> str | None:
        """Choose a GPU that is not out, the contended one as often as all others together."""
        out = {one.outage.address for one in self._now}
        healthy = self._healthy()  # others may still show the taints of an outage that is over
        free = [address for address in ADDRESSES if address not in out and address in healthy]
        if len(out) >= MOST_OUT or not free:
            return None
        return HOT if HOT in free and self._random.random() < 0.5 else self._random.choice(free)


def _persist(work: Callable[[], object]) -> None:
    """Do what a person does until it works: the disk may be full for a while."""
    until = time.monotonic() + PERSISTS_S
    while True:
        try:
            work()
        except InputError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
        else:
            return
