"""Unreleased devices: shows which devices no claim gets, because a process of an ended claim still has them open.

In: the ledger's unreleased claims, which the release watch keeps up to date. Out: a taint on each of these devices and
on what is partitioned or shared from it, an Event about the node, and problems for the metrics. A thread exists only
while a device is unreleased, and only in the instance with the node's role.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Protocol

from dra_driver.hardware.facts import Problem
from dra_driver.kube.events import NodeEvents
from dra_driver.model.errors import DriverError
from dra_driver.plugin.instances.agent_part import AgentPart
from dra_driver.plugin.ledger.ledger import Ledger
from dra_driver.plugin.ledger.unreleased import UnreleasedClaim
from dra_driver.telemetry.logs import fields
from dra_driver.telemetry.loop import Loop

log = logging.getLogger(__name__)

CHECK_SECONDS = 2.0
REASON = "DeviceNotReleased"
CODE = "release.open"


class TaintedOffer(Protocol):
    """The devices that the node offers."""

    def keep_unreleased(self, devices: Collection[str]) -> bool:
        """Taint these devices and no others for this reason; return whether that changes what is offered."""


class Publishing(Protocol):
    """Writes what is offered to the API server."""

    def publish_changes(self) -> None:
        """Write it soon."""


class UnreleasedDevices(AgentPart):
    """The devices of one node that are not released."""

    def __init__(
        self, ledger: Ledger, boot_id: str, offer: TaintedOffer, publisher: Publishing, events: NodeEvents
    ) -> None:
        self._ledger, self._boot_id = ledger, boot_id
        self._offer, self._publisher, self._events = offer, publisher, events
        self._loop = Loop("unreleased", self._turn, failure="check of unreleased devices failed", fault_s=CHECK_SECONDS)
        self._has_role = False
        self._problems: tuple[Problem, ...] = ()

    def start(self) -> None:
        """Begin to check. May be called again after `stop`."""
        self._has_role = True
        self._loop.start()

    def stop(self) -> None:
        """End the thread."""
        self._has_role = False
        self._loop.stop()
        self._problems = ()

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Return the devices that are still used although their claim has ended, by claim."""
        return self._problems

    def claim_ended(self) -> None:
        """Check soon, because a claim was unprepared."""
        if self._has_role:
            self._loop.resume()

    def check(self) -> bool:
        """Check once, and return whether any device is unreleased. Raises: LedgerError."""
        kept = self._ledger.unreleased.of_boot(self._boot_id)
        used = [claim for claim in kept if claim.users]
        self._problems = tuple(Problem(CODE, _names(claim), _sentence(claim)) for claim in used)
        if self._offer.keep_unreleased({name for claim in used for name in claim.devices}):
            self._publisher.publish_changes()
        for claim in used:
            self._events.send(REASON, _sentence(claim), "Warning")
        return bool(kept)

    def _turn(self) -> float | None:
        try:
            return CHECK_SECONDS if self.check() else None
        except DriverError as error:
            log.warning("cannot read which devices are unreleased", extra=fields(code=error.code, err=str(error)))
            return CHECK_SECONDS


def _names(claim: UnreleasedClaim) -> str:
    return ", ".join(name for name in claim.devices if "/" not in name)


def _sentence(claim: UnreleasedClaim) -> str:
    return (
        f"{_names(claim)}: no claim gets it, because {claim.users[0]} still has it open through claim "
        f"{claim.namespace}/{claim.name}, which has ended; end that container, or run dra-driver release DEVICE "
        "--force on the node"
    )
