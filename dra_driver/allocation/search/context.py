"""The context of a search: the state that all attempts for one pod share, on whichever node."""

from __future__ import annotations

from dataclasses import dataclass

from dra_driver.allocation.features import Features
from dra_driver.allocation.pools.counters import Accounts
from dra_driver.allocation.pools.held import ClaimHoldings
from dra_driver.allocation.pools.ranges import Arithmetic
from dra_driver.allocation.requests import Plan
from dra_driver.allocation.rules import AllocatorRules
from dra_driver.model.kubernetes import COMPATIBILITY_GROUPS, LIST_ATTRIBUTES


@dataclass(slots=True)
class Context:
    """The state that all attempts for one pod share."""

    plan: Plan
    rules: AllocatorRules
    features: Features
    held: ClaimHoldings
    accounts: Accounts

    @property
    def arithmetic(self) -> Arithmetic:
        """The arithmetic by which capacity is counted."""
        return Arithmetic(self.rules.capacity_errors, self.rules.capacity_errors and self.features.fractional_range)

    @property
    def has_groups(self) -> bool:
        """Whether devices that draw from one counter set have to have a compatibility group in common."""
        return self.rules.knows(COMPATIBILITY_GROUPS) and self.features.compatibility_groups

    @property
    def compares_lists(self) -> bool:
        """Whether constraints compare attributes as lists."""
        return self.rules.knows(LIST_ATTRIBUTES) and self.features.list_attributes
