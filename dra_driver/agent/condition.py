"""Condition: the answers to probes, and the figures for metrics.

In: the parts of the agent, as they are at the moment of the request. Out: reasons why the agent is not ready, and a
snapshot of its figures. Nothing is changed.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from dra_driver import __version__
from dra_driver.agent.opened_node import OpenedNode
from dra_driver.agent.parts import Parts
from dra_driver.inventory.offering import KeptFields
from dra_driver.model.errors import DriverError
from dra_driver.plugin.ledger.ledger import Ledger

if TYPE_CHECKING:
    from dra_driver.controller.status import PublisherStatus
    from dra_driver.hardware.facts import Problem
    from dra_driver.telemetry.metrics import Snapshot


class NodeCondition:
    """The condition of one agent. The agent sets `is_serving` while it serves the kubelet."""

    def __init__(self, node: OpenedNode, parts: Parts) -> None:
        self._node, self._parts = node, parts
        self.is_serving = False

    def unready(self) -> tuple[str, ...]:
        """Return the reasons why the agent is not ready; none if it is."""
        parts, reasons = self._parts, []
        if self.is_serving and not parts.server.registered:
            reasons.append(f"not registered with the kubelet {parts.server.last_error}".rstrip())
        if self._node.ledger.problem:
            reasons.append(self._node.ledger.problem)
        if parts.inventory.current.waiting_for:
            reasons.append(f"waiting for {parts.inventory.current.waiting_for}")
        if parts.other_drivers.competing_agent:
            reasons.append(parts.other_drivers.competing_agent)
        if not parts.role.has_asked or (parts.role.is_held and not parts.role.has_begun):
            reasons.append("not all parts have started")
        status = parts.publisher.status()
        if parts.role.is_held and not status.is_published:
            why = " ".join(status.last_error.split())
            reasons.append(f"no slices published yet: {why}" if why else "no slices published yet")
        return tuple(reasons)

    def snapshot(self) -> Snapshot:
        """Return the agent's figures."""
        from dra_driver.telemetry.metrics import Snapshot  # noqa: PLC0415 - only where metrics are wanted

        parts, status = self._parts, self._parts.publisher.status()
        offered = parts.inventory.current.offering.for_server(KeptFields(shares=status.keeps.shares))
        counts: dict[str, Any] = {name: figures for part in parts for name, figures in part.figures().items()}
        return Snapshot(
            version=__version__,
            vendor=self._node.hardware.vendor,
            devices=Counter(str(device.type) for device in offered.devices),
            problems=Counter(problem.code for problem in self._problems(status)),
            slice_writes=status.writes,
            prepared_claims=count_claims(self._node.ledger),
            is_registered=parts.server.registered,
            holds_role=parts.role.is_held,
            scans=parts.scanner.scans,
            scan_seconds=parts.scanner.scan_seconds,
            pool_generation=status.generation,
            **counts,
        )

    def _problems(self, status: PublisherStatus) -> tuple[Problem, ...]:
        parts = self._parts
        sharing = (*parts.sharing.problems, *parts.other_drivers.problems())
        of_parts = (problem for part in parts for problem in part.problems)
        return (*parts.inventory.current.problems, *status.problems, *parts.declared_mig.problems, *sharing, *of_parts)


def count_claims(ledger: Ledger) -> int:
    """Return the number of claims in the ledger, 0 while it can't be read."""
    try:
        return ledger.count()
    except DriverError:
        return 0
