"""A storm over one node with everything on, from its start to what is left of it.

In: how many operations, a seed, partitions on demand or declared, and what else goes wrong meanwhile. Out: a report of
what was done and what was wrong. Two real agents serve; workers are the kubelet and the users; a disturber is the
hardware and its administrators; a killer ends agents; a watcher compares what everybody sees.
"""

from __future__ import annotations

import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from dra_driver.base.names import NVIDIA_DRIVER
from dra_driver.node.mps.client import socket_path
from dra_driver.simulator.api_server import EmbeddedApi
from dra_driver.simulator.store import SLICES
from tests.storm.support.eyes.counters import Counters
from tests.storm.support.eyes.hours import Hours
from tests.storm.support.eyes.leftovers import cgroups, leftovers, mounts
from tests.storm.support.eyes.observer import CHECK_S, Observer
from tests.storm.support.eyes.outages import Outages
from tests.storm.support.hands.adversities import Adversity
from tests.storm.support.hands.calls import Calls
from tests.storm.support.hands.disturber import Disturber
from tests.storm.support.hands.killer import INSIDE, Killer
from tests.storm.support.hands.pod_worker import PodWorker
from tests.storm.support.node.agents import Agents, MpsSupervisor
from tests.storm.support.node.cluster import NODE, Claim, Cluster
from tests.storm.support.node.devices import ADDRESSES, address_of
from tests.storm.support.node.kubelet import StormKubelet
from tests.storm.support.node.machine import Machine

WORKERS = 6
SCRAPE_S = 1.0
SETTLES_S = 240.0  # how long the node has, in the end, to offer every GPU again
MOST_WRONG = 20
KILLS = 0.045  # kills inside calls for each operation, at least


class Storm:
    """One node in a storm. `folder` is empty, and its own."""

    def __init__(
        self,
        folder: Path,
        operations: int,
        seed: int,
        *,
        is_static: bool = False,
        adversity: Adversity | None = None,
        goes_on: bool = False,
    ) -> None:
        self._operations, self._adversity, self.is_static = operations, adversity or Adversity(), is_static
        self._goes_on = goes_on  # also when something was wrong
        self._did: Counter[str] = Counter()
        self._wrong: list[str] = []
        self._mutex = threading.Lock()
        self.api = EmbeddedApi(version="1.36")
        self.kubelet = StormKubelet(folder, self.api)
        self.data = self.kubelet.plugins_dir / NVIDIA_DRIVER
        self.data.mkdir()
        self._adversity.prepare(folder, [self.data, self.kubelet.cdi_dir])
        self.mounts, self.cgroups = set(mounts()), cgroups()
        self.machine = Machine(folder, self.data, is_static=is_static)
        self.observer = Observer(self.machine, self.kubelet)
        self.outages, self.counters, self.hours = Outages(self.api, self.machine), Counters(), Hours()
        self.cluster = Cluster(self.api)
        self._folder, self._seed = folder, seed
        self._seconds: dict[str, float] = {}

    def run(self) -> dict[str, Any]:
        """Run the storm, and return the report."""
        with ExitStack() as stack:
            for name, part in (
                ("set up", lambda: self._set_up(stack)),
                ("storm", self._blow),
                ("settle", self._settle),
            ):
                before = time.monotonic()
                part()
                self._seconds[name] = round(time.monotonic() - before, 1)
        return self._report()

    # -- what the threads ask

    def has_more(self) -> bool:
        kills = self.killer.inside[INSIDE]
        is_enough = self._count() >= self._operations and kills >= self._operations * KILLS
        return not is_enough and (self._goes_on or not self._all_wrong())

    def tolerates(self, claim: Claim, error: str) -> bool:
        if "[driver.bug]" in error and not _is_of_simulation(error):
            return False
        is_late = "claim.not-allocated" in error and self.cluster.is_allocated(claim)  # an answer of the API was late
        return is_late or self._adversity.explains(error)

    def failed(self, what: str) -> None:
        with self._mutex:
            self._wrong.append(what)

    def did(self, what: str) -> None:
        with self._mutex:
            self._did[what] += 1

    # -- the course of the storm

    def _set_up(self, stack: ExitStack) -> None:
        stack.enter_context(self.api)
        self.api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        kubeconfig = self.api.write_kubeconfig(self._folder / "kubeconfig")
        self.kubelet.start()
        stack.callback(self.kubelet.stop)
        flags = ["--node-name", NODE, "--kubeconfig", str(kubeconfig), "--cdi-root", str(self.kubelet.cdi_dir)]
        flags += ["--kubelet-registrar-directory-path", str(self.kubelet.registrar_dir)]
        flags += ["--kubelet-plugins-directory-path", str(self.kubelet.plugins_dir)]
        flags += ["--metrics-address", "127.0.0.1:0", "--telemetry", "full", "--telemetry-interval", "1"]
        flags += ["--remediation", "on", "--lease-namespace", "default", "--claim-status", "on"]
        flags += ["--device-metadata", "on", "--node-condition", "on", "--validate", "0", *self.machine.flags()]
        environment = {**self.machine.environment(), **self._adversity.environment()}
        self.agents = Agents(self._folder, self.data, flags, environment)
        stack.callback(self.agents.close)
        self.supervisor = MpsSupervisor(self._folder, self.kubelet.plugins_dir, self.machine.flags()[:2])
        stack.callback(self.supervisor.end, signal.SIGKILL)
        self._await(socket_path(self.data).exists, "the MPS supervisor answers")
        self.agents.slots = [self.agents.start(), self.agents.start()]
        for agent in self.agents.slots:
            self.agents.await_serving(agent)
        self._await(lambda: len(self._offered_gpus()) == len(ADDRESSES), "every GPU is offered")
        self.calls = Calls(self.agents, self.observer.used_beside)
        asks = {"has_more": self.has_more, "did": self.did, "drain": self.cluster.drain, "healthy": self._healthy_gpus}
        unrepaired_s = self._adversity.unrepaired_s
        self.disturber = Disturber(self.machine, self.outages, self._seed + 1, unrepaired_s=unrepaired_s, **asks)
        rush = self.cluster.rush
        self.killer = Killer(self.agents, self.calls, self._seed + 2, has_more=self.has_more, rush=rush)

    def _blow(self) -> None:
        """Run all threads until there were enough operations, or something was wrong."""
        parts = {"calls": self.calls, "cluster": self.cluster, "kubelet": self.kubelet}
        workers = [
            PodWorker(self, self._seed * 1000 + number, observer=self.observer, hours=self.hours, **parts)  # type: ignore[arg-type]
            for number in range(WORKERS)
        ]
        others = [
            self._thread(self.disturber.run),
            self._thread(self.killer.run),
            self._thread(self.killer.run_at_actions),
            self._thread(lambda: self._adversity.run(self)),
        ]
        ended = threading.Event()
        watcher = self._thread(lambda: self._watch(ended))
        for thread in [*workers, *others, watcher]:
            thread.start()
        for thread in [*workers, *others]:
            thread.join()
        ended.set()
        watcher.join()

    def _thread(self, work: Any) -> threading.Thread:
        def run() -> None:
            try:
                work()
            except Exception as error:
                self.failed(f"the storm itself failed: {type(error).__name__}: {error}")
                raise

        return threading.Thread(target=run, daemon=True)

    def _watch(self, ended: threading.Event) -> None:
        scraped_at = time.monotonic()
        while not ended.wait(CHECK_S):
            self.observer.check()
            self.outages.look()
            if time.monotonic() - scraped_at > SCRAPE_S:
                scraped_at = time.monotonic()
                self._scrape()

    def _scrape(self) -> None:
        for agent in tuple(self.agents.slots):
            self.counters.take(agent, time.monotonic())

    def _settle(self) -> None:
        """Compare the hours, wait until every GPU is offered and can be had again, and look for what is left."""
        if self._all_wrong() and not self._goes_on:
            return
        try:
            self.disturber.end_all()
            self._await(lambda: len(self._offered_gpus()) == len(ADDRESSES), "every GPU is offered again")
            self._scrape()
            time.sleep(2 * SCRAPE_S)
            self._scrape()
            if self._adversity.keeps_hours:
                self._wrong += self.hours.wrong(self.counters.hours())
            self._end_agents()
        except AssertionError as error:
            self.failed(str(error))

    def _end_agents(self) -> None:
        """End both agents; the next one undoes what they left half-done. Then nothing may be left."""
        for agent in self.agents.slots:
            self.agents.end(agent, signal.SIGTERM)
        self.agents.replace(0)
        left: list[str] = []

        def is_clean() -> bool:
            left[:] = leftovers(self, has_agent=True)
            return not left

        self._await(is_clean, "nothing is left", left)
        self.agents.end(self.agents.slots[0], signal.SIGTERM)
        self.supervisor.end(signal.SIGTERM)
        self._wrong += leftovers(self, has_agent=False)

    def _await(self, condition: Any, what: str, seen: Any = "") -> None:
        began = time.monotonic()
        until = began + SETTLES_S
        while not condition():
            if time.monotonic() > until:
                taints = [taint for one in self.api.items(SLICES) for taint in _taints(one)]
                raise AssertionError(f"not within {SETTLES_S:.0f} s: {what}; {seen or self._offered_gpus()} {taints}")
            time.sleep(0.1)
        self._seconds[f"until {what}"] = round(time.monotonic() - began, 1)

    def _offered_gpus(self) -> set[str]:
        """Return the GPUs of which something is offered without a taint."""
        return {address_of(one.name) for one in self.cluster.offered() if not one.is_tainted}

    def _healthy_gpus(self) -> set[str]:
        """Return the GPUs of which something is offered, and nothing with a taint."""
        return self._offered_gpus() - {address_of(one.name) for one in self.cluster.offered() if one.is_tainted}

    # -- the report

    def _count(self) -> int:
        return self.calls.made + self._did.total() + self.killer.signals.total()

    def _all_wrong(self) -> list[str]:
        return [*self._wrong, *self.observer.wrong, *self.outages.wrong, *self.counters.wrong]

    def _report(self) -> dict[str, Any]:
        return {
            "operations": self._count(),
            "seconds": self._seconds,
            "seed": self._seed,
            "partitions": "declared" if self.is_static else "on demand",
            "adversity": self._adversity.name,
            "calls": self.calls.made,
            "contending": self.calls.contending,
            "answers": dict(sorted(self.calls.done.items())),
            "done": dict(sorted(self._did.items())),
            "signals": dict(self.killer.signals),
            "kills": dict(self.killer.inside),
            "an agent serves after": round(sum(self.agents.starts) / len(self.agents.starts), 2),
            "looks": self.observer.checks,
            "pages": self.counters.pages,
            "wrong": examples(self._all_wrong()),
        }


def examples(wrong: list[str]) -> list[str]:
    """Return one of each kind of finding, and how many there were: findings that differ in names alone are one kind."""
    kinds: dict[str, list[str]] = {}
    for one in wrong:
        kinds.setdefault(re.sub(r"[^ ]*[0-9][^ ]*", "#", one), []).append(one)
    return [f"{found[0]} ({len(found)} times)" for found in kinds.values()][:MOST_WRONG]


def _taints(wire: dict[str, Any]) -> Iterator[str]:
    for device in wire["spec"].get("devices") or ():
        for taint in device.get("taints") or ():
            yield f"{device['name']}: {taint['key']}={taint.get('value', '')}"


def _is_of_simulation(error: str) -> bool:
    """Return whether an error is one of the files in which only simulated hardware keeps its state."""
    return "No space left on device [driver.bug]" in error or ("Too many open files" in error and "simulated" in error)
