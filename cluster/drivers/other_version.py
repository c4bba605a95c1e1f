"""The driver as another version might be: `python other_version.py WHAT agent …`, for upgrades and downgrades.

In: what differs. Out: this tree's agent with that one difference.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable

from dra_driver.__main__ import main
from dra_driver.base import names
from dra_driver.node.ledger import ledger_file
from dra_driver.node.ledger import ledger_file as ledger_rows
from dra_driver.node.neighbours import allocations


def renamed() -> None:
    """Use other device names: `card-0000-65-00-0`."""
    true = names.gpu_name
    names.gpu_name = lambda address: true(address).replace("gpu-", "card-")
    allocations._OURS = re.compile(allocations._OURS.pattern.replace("gpu-", "card-"))


def newer_ledger() -> None:
    """Use a ledger of the next minor version, with a column and a table that this version does not know."""
    column = "ALTER TABLE claims ADD COLUMN colour TEXT NOT NULL DEFAULT 'red'"
    table = "CREATE TABLE IF NOT EXISTS colours (claim_uid TEXT PRIMARY KEY, colour TEXT NOT NULL)"
    ledger_file.MINOR = ledger_rows.MINOR = ledger_rows.MINOR + 1
    ledger_rows.LATER_TABLES = (*ledger_rows.LATER_TABLES, column, table)
    version = f"PRAGMA user_version={ledger_rows.MAJOR * 1000 + ledger_rows.MINOR}"
    ledger_rows.SCHEMA = (*ledger_rows.SCHEMA[:-1], column, table, version)


WHAT: dict[str, Callable[[], None]] = {"renamed": renamed, "newer-ledger": newer_ledger}

if __name__ == "__main__":
    WHAT[sys.argv.pop(1)]()
    sys.exit(main())
