"""The ledger's file, read and changed by SQL without the agent."""

import sqlite3
from contextlib import closing
from pathlib import Path


def sql(path: Path, *lines: str) -> list[tuple]:
    with closing(sqlite3.connect(path)) as connection:
        rows = [connection.execute(line).fetchall() for line in lines]
        connection.commit()
    return rows[-1]
