"""Claim files: the ledger's view of the CDI files of prepared claims, which outlive the ledger."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from dra_driver.plugin.ledger.record import ClaimRecord


class ClaimFiles(Protocol):
    """The CDI files of this driver's claims."""

    def recover(self) -> Iterable[ClaimRecord]:
        """Return a record for each claim that has a file; called when the ledger is lost and has to be rebuilt.

        Raises: PrepareError, if the files can't be read now.
        """

    def has(self, uid: str) -> bool:
        """Return whether a claim has a file."""


class NoClaimFiles:
    """No claim has a file: for a ledger that is only inspected."""

    def recover(self) -> Iterable[ClaimRecord]:
        """Return nothing."""
        return ()

    def has(self, _uid: str) -> bool:
        """Return that the claim has none."""
        return False
