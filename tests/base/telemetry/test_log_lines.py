"""Log lines: the time, level, name, message and key-values of a record, as text and as JSON."""

from __future__ import annotations

import json
import logging
import time

from dra_driver.base.telemetry.logs import JsonFormatter, TextFormatter, fields

NOON = 1_700_000_000.25


def record(created: float, level: int = logging.INFO, **values: object) -> logging.LogRecord:
    """Return a record of a message with these key-values that was logged at a time."""
    made = logging.LogRecord("dra_driver.node.daemon.node", level, "", 0, "it is so", (), None)
    made.created, made.msecs = created, (created - int(created)) * 1000
    made.__dict__.update(fields(**values))
    return made


def test_each_line_has_the_time_of_its_own_record() -> None:
    text, as_json = TextFormatter(), JsonFormatter()
    for created in (NOON, NOON + 0.5, NOON + 1, NOON, NOON + 86_400):
        local = time.strftime("%H:%M:%S", time.localtime(created))
        utc = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(created))
        millis = f".{round(created % 1 * 1000):03d}"
        assert text.format(record(created)) == f"{local}{millis} INFO    node.daemon.node: it is so"
        assert json.loads(as_json.format(record(created)))["ts"] == f"{utc}{millis}Z"


def test_values_with_spaces_quotes_or_nothing_in_them_are_quoted_in_text() -> None:
    line = TextFormatter().format(
        record(NOON, logging.WARNING, devices=2, took_ms=1.5, err='no "a"', device="", pool="ä")
    )
    assert line.endswith(
        r"""WARNING node.daemon.node: it is so devices=2 took_ms=1.5 err="no \"a\"" device="" pool=ä"""
    )


def test_values_that_json_does_not_know_are_written_as_text() -> None:
    line = JsonFormatter().format(record(NOON, devices=2, err=ValueError("ä"), file=None))
    assert json.loads(line) | {"ts": ""} == {
        "ts": "",
        "level": "info",
        "logger": "dra_driver.node.daemon.node",
        "msg": "it is so",
        "devices": 2,
        "err": "ä",
        "file": None,
    }
    assert "ä" in line
