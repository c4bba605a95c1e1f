"""Scanner: looks at the hardware and reports changes.

A cheap probe runs every two seconds; a full discovery runs when the probe's answer changed, or once a minute in case
the probe cannot see something. Events only ever trigger a new look: the hardware itself is always read again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Hashable
from dataclasses import replace

from dra_driver.hardware.facts import Facts
from dra_driver.hardware.port import Hardware
from dra_driver.inventory.build import build_inventory
from dra_driver.inventory.mig.partitions import STATIC, MigPolicy
from dra_driver.inventory.offering import Inventory
from dra_driver.inventory.sharing.rules import NOTHING_SHARED, SharingRules
from dra_driver.model.errors import DriverError
from dra_driver.telemetry.logs import fields
from dra_driver.telemetry.loop import Loop

log = logging.getLogger(__name__)

PROBE_SECONDS = 2.0
FULL_SECONDS = 60.0
DRIVER_CHANGED = "hardware.driver-changed"

FIRST_LOOK = Inventory(waiting_for="the first look at the hardware")


class Scanner:
    """Keeps the newest inventory, and calls `on_change` with each new one and after each change that the probe saw.

    `judge` returns how MIG is offered, who owns the partitions, and what is shared; a change of what `also` returns
    causes a full look. `on_driver_change` is called once when the loaded driver is no longer the one whose library
    this process has open.
    """

    def __init__(
        self,
        hardware: Hardware,
        *,
        on_change: Callable[[Inventory], None],
        on_driver_change: Callable[[], None],
        judge: Callable[[Facts], tuple[Facts, MigPolicy, SharingRules]] = lambda f: (f, STATIC, NOTHING_SHARED),
        also: Callable[[], Hashable] = lambda: None,
        probe_s: float = PROBE_SECONDS,
        full_s: float = FULL_SECONDS,
    ) -> None:
        self._hardware = hardware
        self._on_change = on_change
        self._judge = judge
        self._also = also
        self._on_driver_change = on_driver_change
        self._probe_s, self._full_s = probe_s, full_s
        self._is_paused = False
        self._is_let_go = False
        self._fingerprint: Hashable = None
        self._scanned_at = float("-inf")
        self._asks, self._answered = 0, 0  # a request made during a look gets its own look
        self._loop = Loop("scanner", self._turn, failure="hardware scan failed", fault_s=probe_s)
        self._judged: tuple[Facts, MigPolicy, SharingRules] | None = None  # what the newest inventory was built from
        self.inventory: Inventory = FIRST_LOOK
        self.scans = 0
        self.scan_seconds = 0.0

    def start(self) -> None:
        """Start the thread; `on_change` gets the first inventory as soon as it is known."""
        self._loop.start()

    def stop(self, timeout_s: float = 1.0) -> None:
        """End the thread. It is a daemon: if it hangs in a hardware call, it is left behind."""
        self._loop.stop(timeout_s)

    def look_now(self) -> None:
        """Make a full discovery now rather than at the next probe."""
        self._asks += 1
        self._loop.wake()

    def look_again(self) -> None:
        """Make a full discovery at the next probe, whatever the probe returns."""
        self._asks += 1

    def inventory_holding(self, names: Collection[str]) -> Inventory:
        """Return the newest inventory as if claims held these devices too, without a look at the hardware."""
        if self._judged is None:
            return self.inventory
        facts, policy, rules = self._judged
        held = policy.ownership.held.union(names)
        return build_inventory(facts, replace(policy, ownership=replace(policy.ownership, held=held)), rules)

    def let_go(self) -> None:
        """Release the vendor's library until `resume`, so that the driver can be unloaded."""
        self._is_paused = True
        self._loop.wake()

    def resume(self) -> None:
        """Use the hardware again after `let_go`."""
        self._is_paused = False
        self.look_now()

    def _turn(self) -> float | None:
        try:
            self._step()
        except DriverError as error:
            if error.code == DRIVER_CHANGED:
                log.warning("the loaded driver changed", extra=fields(err=str(error)))
                self._on_driver_change()
                return None
            log.warning("hardware scan failed", extra=fields(code=error.code, err=str(error)))
        return self._probe_s

    def _step(self) -> None:
        if self._is_paused:
            if not self._is_let_go:
                self._hardware.close()
                self._is_let_go = True
                log.info("vendor's library released")
            return
        self._is_let_go = False
        asked = self._asks
        fingerprint = (self._hardware.fingerprint(), self._also())
        now = time.monotonic()
        is_seen = asked != self._answered or fingerprint != self._fingerprint
        if not is_seen and now - self._scanned_at < self._full_s:
            return
        self._judged = self._judge(self._hardware.discover())
        inventory = build_inventory(*self._judged)
        self._fingerprint, self._scanned_at, self._answered = fingerprint, now, asked
        self.scans += 1
        self.scan_seconds = time.monotonic() - now
        if inventory != self.inventory:
            self._log(inventory)
            self.inventory = inventory
            self._on_change(inventory)
        elif is_seen:  # device nodes may have changed although no device did
            self._on_change(inventory)

    def _log(self, inventory: Inventory) -> None:
        known = set(self.inventory.problems)
        for problem in inventory.problems:
            if problem not in known:
                log.warning(
                    "hardware problem", extra=fields(code=problem.code, device=problem.subject, problem=problem.message)
                )
        log.info(
            "hardware scanned",
            extra=fields(
                devices=len(inventory.devices),
                count=len(inventory.problems),
                took_ms=round(self.scan_seconds * 1000),
                **({"reason": inventory.waiting_for} if inventory.waiting_for else {}),
            ),
        )
