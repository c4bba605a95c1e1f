"""What calls leave behind is what version 0.1 left, byte for byte: rows, CDI files, errors, and what is logged.

The recorded rows are also read and written again one by one. After a change of bytes that was meant, record them again:
`python -m tests.node.support.recorded_calls`.
"""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from dra_driver.node.ledger.record import record_of_row, row_of_record
from tests.node.support.recorded_calls import FILE, SCENES, partitions, record

RECORDED: dict[str, list[dict[str, Any]]] = json.loads(FILE.read_text())


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_a_call_leaves_the_bytes_that_were_recorded(scene) -> None:
    recorded = RECORDED[scene.__name__]
    found = record(scene)
    assert [entry["call"] for entry in found] == [entry["call"] for entry in recorded]
    for one, expected in zip(found, recorded, strict=True):
        lines = sorted if scene is partitions else list  # made at the same time on two GPUs, logged in either order
        assert {**one, "log": lines(one["log"])} == {**expected, "log": lines(expected["log"])}, one["call"]


def rows() -> Iterator[dict[str, Any]]:
    for entry in (entry for scene in RECORDED.values() for entry in scene):
        yield from entry["rows"]
        yield from entry.get("claims", ())


def test_a_recorded_row_is_read_and_written_byte_for_byte() -> None:
    count = 0
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.row_factory = sqlite3.Row
        for row in rows():
            columns = ", ".join(f"? AS {name}" for name in row)
            read = connection.execute(f"SELECT {columns}", tuple(row.values())).fetchone()
            written = row_of_record(record_of_row(read))
            assert written == {name: row[name] for name in written}
            count += 1
    assert count >= 80


def test_every_kind_of_step_is_recorded() -> None:
    kinds = {step["kind"] for row in rows() for step in json.loads(row["steps"])}
    assert kinds == {"cdi-file", "mig-mode", "mig-partition", "sharing", "memory-limit", "teleport"}
