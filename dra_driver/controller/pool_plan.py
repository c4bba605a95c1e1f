"""Pool plan: the writes that make the slices on the API server equal to what is offered now.

In: the offers, facts about the server, the stored slices. Out: a `WritePlan`. The offers are asked for right before the
writes, because what a scheduler has just allocated must stay. Only the thread that writes slices uses this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Condition
from typing import Protocol

from dra_driver.controller.content import PoolContent, content_of
from dra_driver.controller.diff import WritePlan, generation_of, keys_of, plan_writes, pool_of
from dra_driver.controller.dropped_fields import DroppedFields
from dra_driver.controller.layout import SliceSpec, lay_out
from dra_driver.controller.probe import Probe
from dra_driver.controller.server_facts import ServerFacts
from dra_driver.controller.validity import find_faults
from dra_driver.inventory.offering import KeptFields, Offering
from dra_driver.model.errors import ApiError
from dra_driver.model.wire import SliceWire


class Offers(Protocol):
    """Decides what a node offers."""

    def current(self, keeps: KeptFields) -> Offering | None:
        """Return what to offer now to a server that keeps these fields; None withdraws the pool.

        Raises: ApiError while that can't be decided; then nothing is written.
        """


class PoolPlanner:
    """Plans the writes of one pool. `changed` guards `dropped`."""

    def __init__(
        self,
        empty: SliceSpec,
        offers: Offers,
        server: ServerFacts,
        probe: Probe,
        *,
        dropped: DroppedFields,
        changed: Condition,
    ) -> None:
        self._empty, self._offers, self._server, self._probe = empty, offers, server, probe
        self._dropped_fields, self._changed = dropped, changed
        self._highest_generation = 0

    def content(self) -> PoolContent | None:
        """Return the content that the pool is to have on this server; None if it is to have no slices.

        The server is first asked which fields of that content it keeps. Raises: ApiError.
        """
        minor = self._server.minor()
        with self._changed:
            if self._server.is_changed():
                self._dropped_fields.forget()
                self._probe.forget()
            known = self._dropped_fields.fields
            if self._dropped_fields.taints_are_due:
                self._probe.forget_taints()
                self._dropped_fields.forget_taints()
            self._dropped_fields.forget_fields(self._probe.expired())
        while True:
            with self._changed:
                kept = self._dropped_fields.kept
            offering = self._offers.current(kept)
            if offering is None:
                return None
            content = content_of(offering, server_minor=minor)
            found = self._probe.ask(content, self._empty, minor=minor, known=known)
            with self._changed:
                self._dropped_fields.add(found)
                if self._dropped_fields.kept == kept:
                    return content

    def plan(self, content: PoolContent | None, stored: Sequence[SliceWire]) -> WritePlan:
        """Return the writes that lead from the stored slices to this content. Raises: ApiError."""
        own = tuple(one for one in stored if pool_of(one) == self._empty.pool)
        if content is None:
            return WritePlan(self._highest_generation, deletes=own)
        owner, minor = self._server.owner(), self._server.minor()
        if faults := find_faults(content, server_minor=minor):
            raise ApiError("pool-invalid", f"pool {self._empty.pool} can't be published: {'; '.join(faults)}")
        current = max(map(generation_of, own), default=0)
        specs = lay_out(
            content.devices,
            pool=self._empty.pool,
            node=self._empty.node,
            driver=self._empty.driver,
            server_minor=minor,
            counter_sets=content.counter_sets,
            placement=[keys_of(s) for s in own if generation_of(s) == current],
        )
        plan = plan_writes(specs, stored, owner=owner, least_generation=self._highest_generation + 1)
        self._highest_generation = max(self._highest_generation, plan.generation)
        return plan
