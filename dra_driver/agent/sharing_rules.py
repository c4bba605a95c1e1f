"""Sharing rules: those in force on this node, kept up to date with their file, the node's labels and existing claims.

In: a file, the API. Out: `SharingRules`, and the devices that are allocated when the rules change. If the file is
invalid when the agent starts, the agent ends; if it becomes invalid later, that is reported and the earlier rules stay
in force.
An invalid file is read again only after it has changed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from pathlib import Path

from dra_driver.hardware.facts import Problem
from dra_driver.inventory.mig.partitions import Ownership
from dra_driver.inventory.sharing.rules import NOTHING_SHARED, SharingRules
from dra_driver.kube.ports import NodeApi
from dra_driver.model.errors import ApiError, InputError
from dra_driver.model.sharing import Tenants
from dra_driver.model.stamp import stamp_of
from dra_driver.plugin.node_claims.allocations import AllocatedDevices
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

SETTLE_SECONDS = 90.0  # by then, a device that was allocated when the rules changed is in the ledger or released


class CurrentSharingRules:
    """The rules of one node, for use by a single thread.

    Without a file, nothing is shared and the API is not asked.
    """

    def __init__(
        self,
        path: Path | None,
        node: str,
        *,
        api: NodeApi,
        allocated: AllocatedDevices,
        clock: Callable[[], float] = time.monotonic,
        tenants: Tenants = Tenants.ANY,
    ) -> None:
        self._tenants = tenants
        self._path, self._node, self._api, self._allocated, self._clock = path, node, api, allocated, clock
        self._rules = NOTHING_SHARED
        self._stamp: Hashable = None
        self._labels: Mapping[str, str] | None = None
        self._held: frozenset[tuple[str, bool]] = frozenset()
        self._held_until = 0.0
        self._must_ask = path is not None
        self.problems: tuple[Problem, ...] = ()
        if path is not None:
            self._stamp = self.fingerprint()
            self._rules = _read(path, tenants)

    def fingerprint(self) -> Hashable:
        """Return a value that differs whenever the file has changed; a file that is gone has changed too."""
        return None if self._path is None else stamp_of(self._path)

    def read(self) -> SharingRules:
        """Return the rules in force now. Raises: ApiError while a rule needs labels that were never read."""
        if self._path is None:
            return NOTHING_SHARED
        if (stamp := self.fingerprint()) != self._stamp:
            self._stamp = stamp
            self._read_again(self._path)
        if self._rules.need_labels:
            self._read_labels()
        return replace(self._rules, node=self._node, labels=self._labels or {})

    def with_allocated(self, ownership: Ownership) -> Ownership:
        """Add the devices that were allocated to claims before the rules changed, so that each keeps its form.

        Once the ledger has a device, its form in the ledger is used.

        Raises: DriverError while these devices can't be determined.
        """
        if self._must_ask:
            self._held = self._allocated.forms()
            self._must_ask, self._held_until = False, self._clock() + SETTLE_SECONDS
        known = {name for name, _ in ownership.forms}
        self._held = frozenset(one for one in self._held if one[0] not in known)
        if not self._held or self._clock() > self._held_until:
            return ownership
        return replace(ownership, forms=ownership.forms | self._held)

    def _read_again(self, path: Path) -> None:
        try:
            rules = _read(path, self._tenants)
        except InputError as error:
            self.problems = (Problem("sharing.config", str(path), f"the previous rules stay in force: {error}"),)
            keys = fields(file=str(path), err=str(error))
            log.error("sharing configuration is invalid, the previous one stays in force", extra=keys)  # noqa: TRY400
            return
        self.problems = ()
        if rules != self._rules:
            self._rules, self._must_ask = rules, True

    def _read_labels(self) -> None:
        try:
            node = self._api.get_node(self._node)
        except ApiError:
            if self._labels is None:
                raise
            return
        labels = (node.get("metadata") or {}).get("labels") or {}
        if self._labels is not None and labels != self._labels:
            self._must_ask = True
        self._labels = labels


def _read(path: Path, tenants: Tenants) -> SharingRules:
    """Read the file, and log which parts of it have no effect here. Raises: InputError."""
    from dra_driver.claims.config.node_settings import read_sharing_config  # noqa: PLC0415 - yaml and pydantic, only for this

    rules = read_sharing_config(path, tenants)
    log.info("sharing configured", extra=fields(file=str(path), count=len(rules.rules)))
    for note in rules.notes:
        log.warning("part of the sharing configuration has no effect", extra=fields(file=str(path), reason=note))
    return rules
