"""WrappingJudge: the common part of all judges that complete the judgement of another one."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dra_driver.agent.inventory.scanner import OfferJudge


class WrappingJudge:
    """Passes on whether the inner judge is settled, and its fingerprint; a subclass adds `judge`."""

    def __init__(self, judge: OfferJudge) -> None:
        self._judge = judge

    @property
    def is_settled(self) -> bool:
        """Return whether the last judgement is final."""
        return self._judge.is_settled

    def fingerprint(self) -> Hashable:
        """Return a value whose change makes a new judgement necessary."""
        return self._judge.fingerprint()
