"""Logs: a constant message with key-values, as text for people or JSON for machines.

    log.info("slices published", extra=fields(pool=pool, devices=8, took_ms=41))

The set of keys is closed, so that a log query written today still works tomorrow. Tokens and environments are never
logged.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from functools import lru_cache
from typing import Any, TextIO

from dra_driver.telemetry.line_handler import LineHandler

KEYS = frozenset(
    [
        "node",
        "driver",
        "pool",
        "device",
        "claim",
        "claim_uid",
        "request",
        "rpc",
        "attempt",
        "generation",
        "slices",
        "devices",
        "took_ms",
        "code",
        "err",
        "hint",
        "problem",
        "socket",
        "file",
        "step",
        "holder",
        "role",
        "version",
        "reason",
        "count",
        "vendor",
        "pid",
        "signal",
        "address",
        "profile",
        "seconds",
        "verb",
        "path",
        "status",
    ]
)

_ATTRIBUTE = "dra_fields"
_QUOTED = re.compile(r'[ "=\n]')  # a value with one of these is written in quotes
_JSON = json.JSONEncoder(default=str, ensure_ascii=False)


def fields(**values: Any) -> dict[str, Any]:
    """Return key-values as `extra` of a log call. Raises: KeyError for a key outside the closed set, which is a bug."""
    unknown = values.keys() - KEYS
    if unknown:
        raise KeyError(f"log keys outside the closed set: {sorted(unknown)}")
    return {_ATTRIBUTE: values}


class TextFormatter(logging.Formatter):
    """One line per record: time, level, last part of the logger's name, message, key=value."""

    def format(self, record: logging.LogRecord) -> str:
        """Render one record; a traceback follows on separate lines."""
        stamp, name = _local_time(int(record.created)), record.name.removeprefix("dra_driver.")
        pairs = "".join([f" {k}={_plain(v)}" for k, v in getattr(record, _ATTRIBUTE, {}).items()])
        line = f"{stamp}.{int(record.msecs):03d} {record.levelname:<7} {name}: {record.getMessage()}{pairs}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object per line: ts (RFC 3339, UTC), level, logger, msg, then the key-values."""

    def format(self, record: logging.LogRecord) -> str:
        """Render one record; a traceback is under the key `exc`."""
        entry: dict[str, Any] = {
            "ts": f"{_utc(int(record.created))}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": record.getMessage(),
        }
        entry.update(getattr(record, _ATTRIBUTE, {}))
        if record.exc_info:
            entry["exc"] = self.formatException(record.exc_info)
        return _JSON.encode(entry)


@lru_cache(1)  # most lines are written in the same second as the line before them
def _local_time(second: int) -> str:
    return time.strftime("%H:%M:%S", time.localtime(second))


@lru_cache(1)
def _utc(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))


def _plain(value: object) -> str:
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if not text or _QUOTED.search(text) else text


def set_up(log_format: str, *, level: int = logging.INFO, stream: TextIO | None = None) -> None:
    """Send the logs of the process to `stream` (default: standard error) as "text" or "json"."""
    handler = LineHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    # Log lines do not name code, thread or process: finding these out would take half of the time of writing a line.
    logging._srcfile = None  # noqa: SLF001 # source: Python's Logging HOWTO, "Optimization"
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
