"""Logs: a constant message with key-values, as text for people or JSON for machines.

    log.info("slices published", extra=fields(pool=pool, devices=8, took_ms=41))

The set of keys is closed, so that a log query written today still works tomorrow. Tokens and environments are never
logged.
"""

from __future__ import annotations

import json
import logging
import queue
import re
import sys
import threading
import time
from contextlib import suppress
from logging.handlers import QueueHandler
from typing import Any, TextIO

from dra_driver.telemetry.thread_start import start_thread

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
MAX_LINES = 10_000  # that wait for the program that reads the log; further ones are dropped and counted
END_SECONDS = 2.0  # how long the end of the process waits for lines to be written


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
        stamp = time.strftime("%H:%M:%S", time.localtime(int(record.created)))
        name = record.name.removeprefix("dra_driver.")
        pairs = "".join([f" {k}={_plain(v)}" for k, v in getattr(record, _ATTRIBUTE, {}).items()])
        line = f"{stamp}.{int(record.msecs):03d} {record.levelname:<7} {name}: {record.getMessage()}{pairs}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object per line: ts (RFC 3339, UTC), level, logger, msg, then the key-values."""

    def format(self, record: logging.LogRecord) -> str:
        """Render one record; a traceback is under the key `exc`."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(int(record.created)))
        entry: dict[str, Any] = {
            "ts": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": record.getMessage(),
        }
        entry.update(getattr(record, _ATTRIBUTE, {}))
        if record.exc_info:
            entry["exc"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str, ensure_ascii=False)


def _plain(value: object) -> str:
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if not text or _QUOTED.search(text) else text


class BackgroundHandler(QueueHandler):
    """Has a thread of its own write the lines, so that no call waits for the program that reads them.

    `close` writes what is left, as far as `END_SECONDS` allow.
    """

    def __init__(self, writer: logging.Handler) -> None:
        """Start the thread, which writes by the handler `writer`."""
        self._lines: queue.Queue[logging.LogRecord | None] = queue.Queue(MAX_LINES)
        super().__init__(self._lines)
        self._writer = writer
        self._dropped = 0
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)
        start_thread(self._thread)

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """Return the record as it is, because it stays in this process."""
        return record

    def enqueue(self, record: logging.LogRecord) -> None:
        """Keep a record until the thread writes it, or drop it if there are too many."""
        try:
            self._lines.put_nowait(record)
        except queue.Full:
            self._dropped += 1

    def close(self) -> None:
        """Write what is left, and end the thread."""
        with suppress(queue.Full):
            self._lines.put(None, timeout=END_SECONDS)
        self._thread.join(END_SECONDS)
        super().close()

    def _write(self) -> None:
        while (record := self._lines.get()) is not None:
            self._writer.handle(record)
            if self._dropped and self._lines.empty():
                text, self._dropped = f"{self._dropped} lines of the log were dropped, because nobody read them", 0
                self._writer.handle(logging.LogRecord(__name__, logging.WARNING, "", 0, text, (), None))


def set_up(
    log_format: str, *, level: int = logging.INFO, stream: TextIO | None = None, is_in_background: bool = False
) -> None:
    """Send the logs of the process to `stream` (default: standard error) as "text" or "json".

    Raises: NodeError("node.thread") if the thread that writes them `is_in_background` can't be started.
    """
    writer: logging.Handler = logging.StreamHandler(stream or sys.stderr)
    writer.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [BackgroundHandler(writer) if is_in_background else writer]
    root.setLevel(level)


def finish() -> None:
    """Write what is left, before the process ends without more ado or becomes another one."""
    for handler in logging.getLogger().handlers:
        handler.close()
