"""KeptFile: a file in which the agent keeps what it must still know after a restart, and what is done if it fails.

Two cases are told apart. While the file is *unavailable* (locked, no descriptors, a full or faulty disk, no rights),
nothing is renamed or overwritten: it is tried again, and until then no device is offered that was not offered before.
A *damaged* file is set aside by the instance with the node's role. What it held is lost then, so devices are checked
again before they are offered; this is still known after a crash, because the file that was set aside stays.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path

from dra_driver.model.errors import LedgerError, Retry
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

_HINT = "the plugin's data folder must exist and be writable, with free space; it is tried again"


class KeptFile:
    """One file. Its errors have the two codes of `codes`: when it is unavailable (LATER), and damaged (NEVER)."""

    def __init__(self, path: Path, codes: tuple[str, str]) -> None:
        self.path, (self._unavailable, self._damaged) = path, codes
        self._aside = path.with_name(f"{path.name}.damaged")

    def exists(self) -> bool:
        """Return whether there is a file. Raises: LedgerError if that can't be seen."""
        try:
            self.path.stat()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise self.unavailable(error) from error
        return True

    @property
    def was_set_aside(self) -> bool:
        """Return whether a damaged file was set aside, so that what is missing now may have been in it."""
        return self._aside.exists()

    def set_aside(self) -> None:
        """Rename a damaged file, so that the next write begins a new one. Raises: LedgerError if that is impossible."""
        journal = self.path.with_name(f"{self.path.name}-journal")
        try:
            with suppress(FileNotFoundError):  # first, because SQLite would play it back into the new file
                journal.replace(self._aside.with_name(f"{self._aside.name}-journal"))
            self.path.replace(self._aside)
        except OSError as error:
            raise self.unavailable(error) from error
        keys = fields(code=f"ledger.{self._damaged}", file=str(self._aside))
        log.error("a file of the agent is damaged and was set aside", extra=keys)

    def unavailable(self, error: Exception) -> LedgerError:
        """Return the error for a file that can't be used now."""
        return LedgerError(self._unavailable, f"{self.path}: {error}", hint=_HINT, retry=Retry.LATER)

    def damaged(self, error: object) -> LedgerError:
        """Return the error for a file whose content can't be read."""
        return LedgerError(self._damaged, f"{self.path} is damaged: {error}", retry=Retry.NEVER)
