"""RemediationJournal: a part of the state. What was done to a GPU is on disk before the next step.

In: cases and actions. Out: the same after a crash or a reboot. Only the instance that holds the node's role writes; any
tool may read. What is done if the file fails: `store/state.py`; with a damaged file, the actions that count for budgets
are lost.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dra_driver.model.machine import PeopleTime
from dra_driver.remediation.budgets import WEEK_SECONDS, ActionRow
from dra_driver.remediation.case import RemediationCase
from dra_driver.store.state import Part, StatePart

_TABLES = {
    "cases": "gpu TEXT PRIMARY KEY, body TEXT NOT NULL",
    "actions": "at REAL NOT NULL, uuid TEXT NOT NULL, action TEXT NOT NULL, outcome TEXT",
}
_PART = Part("remediation", "remediation-damaged", _TABLES, older="remediation.db")


class RemediationJournal:
    """The journal of one node. Its times are seconds since 1970; with `people`, those of the agent are in boot time."""

    def __init__(self, folder: Path, people: PeopleTime | None = None, boot_id: str = "") -> None:
        self._people, self._boot_id = people, boot_id
        self._part = StatePart(folder, _PART)

    def may_have_lost_cases(self) -> bool:
        """Return whether there is no case, although there may have been some in a damaged file. Raises: LedgerError."""
        return not self.cases() and self._part.is_lost()

    def cases(self) -> tuple[RemediationCase, ...]:
        """Return the last case of each GPU, in order of PCI addresses. Raises: LedgerError."""

        def read(connection: sqlite3.Connection) -> tuple[RemediationCase, ...]:
            rows = connection.execute("SELECT body FROM cases ORDER BY gpu").fetchall()
            return tuple(self._case(json.loads(body)) for (body,) in rows)

        return self._part.read(read, ())

    def actions(self) -> tuple[ActionRow, ...]:
        """Return the actions of the last seven days and some older ones, the oldest first. Raises: LedgerError."""

        def read(connection: sqlite3.Connection) -> tuple[ActionRow, ...]:
            rows = connection.execute("SELECT at, uuid, action, outcome FROM actions ORDER BY at, rowid").fetchall()
            ago = self._offset
            return tuple(ActionRow(at - ago, str(uuid), str(what), str(how or "")) for at, uuid, what, how in rows)

        return self._part.read(read, ())

    def write(self, case: RemediationCase, began: ActionRow | None = None, outcome: str = "") -> None:
        """Replace a GPU's case durably.

        With `began`, an action is added in the same transaction; with `outcome`, the outcome of the GPU's last action
        is set. Raises: LedgerError.
        """

        def work(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT OR REPLACE INTO cases VALUES (?, ?)", (case.gpu, self._body(case)))
            if began is not None:
                at = began.at + self._offset
                connection.execute("DELETE FROM actions WHERE at < ?", (at - 5 * WEEK_SECONDS,))
                row = (at, began.uuid, began.action, began.outcome)
                connection.execute("INSERT INTO actions VALUES (?, ?, ?, ?)", row)
            if outcome:
                last = "SELECT rowid FROM actions WHERE uuid = ? ORDER BY at DESC, rowid DESC LIMIT 1"
                connection.execute(f"UPDATE actions SET outcome = ? WHERE rowid = ({last})", (outcome, case.uuid))  # noqa: S608

        self._part.write(work)

    def begin(self, cases: Iterable[RemediationCase]) -> None:
        """Write these cases durably, either all of them or none. Raises: LedgerError."""
        rows = [(case.gpu, self._body(case)) for case in cases]
        self._part.write(lambda connection: connection.executemany("INSERT OR REPLACE INTO cases VALUES (?, ?)", rows))

    def forget(self, gpu: str) -> None:
        """Remove a GPU's case, but not the record of the actions on it. Raises: LedgerError."""
        self._part.write(lambda connection: connection.execute("DELETE FROM cases WHERE gpu = ?", (gpu,)))

    def set_aside(self) -> None:
        """Set a damaged file aside. Raises: LedgerError if that is impossible."""
        self._part.set_aside()

    @property
    def _offset(self) -> float:
        """The difference between the times on disk and those of the cases."""
        return self._people.offset if self._people is not None else 0.0

    def _body(self, case: RemediationCase) -> str:
        clock = {"offset": self._offset, "offset_boot": self._boot_id}
        return json.dumps({**case.shifted(self._offset).to_wire(), **clock}, separators=(",", ":"))

    def _case(self, wire: dict[str, Any]) -> RemediationCase:
        """Return a case; one of this boot has the times with which it was written, although the clock was set since."""
        is_of_boot = self._people is not None and wire.get("offset_boot") == self._boot_id
        return RemediationCase.from_wire(wire).shifted(-(float(wire["offset"]) if is_of_boot else self._offset))
