"""Outages: why a GPU is out of service, when that ended, and whether it was offered in between.

In: faults and cordons as the storm makes and ends them, and each write of a slice. Out: the offers that should not have
been made. A GPU is out from the first slice that shows this fault, and stays out until its fault has ended: because the
storm ended it, or because the GPU was reset where a reset cures it. One that was given up needs a person's word.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

from dra_driver.base.names import NVIDIA_DRIVER
from dra_driver.simulator.api_server import EmbeddedApi
from dra_driver.simulator.shapes import ApiRefusal
from dra_driver.simulator.store import SLICES
from tests.storm.support.node.cluster import offered_in
from tests.storm.support.node.devices import address_of
from tests.storm.support.node.machine import Machine

SUPPORT = "support"  # the value of the taint of a GPU that remediation has given up


@dataclass(eq=False)
class Outage:
    """One reason why a GPU is out: what happened, and the taints by which that is shown.

    `mark` is in the hardware's record of a reset that cured it; "" where none does.
    """

    address: str
    what: str
    mark: str = ""
    keys: tuple[str, ...] = ("needs-reset", "remediation", "gpu-lost")
    was_seen: bool = False
    is_given_up: bool = False
    is_over: bool = False


class Outages:
    """The outages of a node, compared with each slice that is written."""

    def __init__(self, api: EmbeddedApi, machine: Machine) -> None:
        self._api, self._machine = api, machine
        self._mutex = threading.Lock()
        self._current: list[Outage] = []
        self._revision = api.store.revision
        self.wrong: list[str] = []

    def begin(self, outage: Outage) -> Outage:
        with self._mutex:
            self._current.append(outage)
        return outage

    def end(self, outage: Outage) -> None:
        """Record that the reason ends now; call this before it is taken away."""
        with self._mutex:
            outage.is_over = True
            self._current.remove(outage)

    def of(self, address: str) -> list[Outage]:
        with self._mutex:
            return [one for one in self._current if one.address == address]

    def has_given_up(self) -> bool:
        """Return whether the agents have given up a GPU."""
        with self._mutex:
            return any(one.is_given_up for one in self._current)

    def look(self) -> None:
        """Compare all slices that were written since the last look."""
        try:
            events = self._api.store.events_after(SLICES, self._revision)
        except ApiRefusal:  # the history was forgotten
            self._revision = self._api.store.revision
            return
        for event in events:
            self._revision = event.revision
            spec = event.new.wire["spec"]
            if event.type != "DELETED" and spec["driver"] == NVIDIA_DRIVER:
                self._compare(spec)

    def _compare(self, spec: dict[str, Any]) -> None:
        free: dict[str, set[str]] = {}
        for device in offered_in([spec]):
            if not device.is_tainted:
                free.setdefault(address_of(device.name), set()).add(device.name)
        taints = _taints(spec)
        cured = self._machine.resets()
        with self._mutex:
            for outage in self._current:
                shown = taints.get(outage.address, set())
                outage.was_seen |= bool({key for key, _ in shown} & set(outage.keys))
                outage.is_given_up |= ("remediation", SUPPORT) in shown
                is_cured = bool(outage.mark) and outage.mark in cured.get(outage.address, "")
                if outage.was_seen and outage.address in free and (not is_cured or outage.is_given_up):
                    names, generation = ", ".join(sorted(free[outage.address])), spec["pool"]["generation"]
                    at = time.strftime("%H:%M:%S")
                    self.wrong.append(f"{names} offered although {outage} (generation {generation}, {at})")


def _taints(spec: dict[str, Any]) -> dict[str, set[tuple[str, str]]]:
    """Return the keys, without the driver's name, and values of the taints of each GPU's devices."""
    found: dict[str, set[tuple[str, str]]] = {}
    for device in spec.get("devices") or ():
        for taint in device.get("taints") or ():
            row = taint["key"].rpartition("/")[2], taint.get("value", "")
            found.setdefault(address_of(device["name"]), set()).add(row)
    return found
