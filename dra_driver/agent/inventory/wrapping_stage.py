"""WrappingStage: the common part of the stages that complete the findings of another stage, the inner one."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dra_driver.agent.inventory.scanner import FactsStage


class WrappingStage:
    """Has the inner stage's `is_settled` and fingerprint; a subclass adds `assess`."""

    def __init__(self, inner: FactsStage) -> None:
        self._inner = inner

    @property
    def is_settled(self) -> bool:
        """Return whether the last inputs are final."""
        return self._inner.is_settled

    def fingerprint(self) -> Hashable:
        """Return a value that changes when the inputs of the inventory have to be determined again."""
        return self._inner.fingerprint()
