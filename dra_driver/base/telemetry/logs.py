"""Logs: a constant message with key-values, as text for people or JSON for machines.

    log.info("slices published", extra=fields(pool=pool, devices=8, took_ms=41))

The set of keys is closed, so that a log query written today still works tomorrow. Tokens and environments are never
logged.
"""

from __future__ import annotations

import json
import logging
import math
import os
import queue
import re
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from logging.handlers import QueueHandler
from typing import Any, Protocol, TextIO
from weakref import WeakSet

from dra_driver.base.errors import DriverError, NodeError, Retry

# The start of a thread, which fails while the process, its pod or its machine may have no more of them.


def start_thread(thread: threading.Thread) -> None:
    """Start a thread. The caller records it only after this, so that the next attempt is made with a new one.

    Raises: NodeError("node.thread").
    """
    try:
        thread.start()
    except RuntimeError as error:
        raise no_thread(thread.name, error) from error


def no_thread(name: str, error: RuntimeError) -> NodeError:
    """Return the error for a thread that Python could not start."""
    return NodeError(
        "thread",
        f"the thread {name} can't be started: {error}",
        hint="raise the limit of processes of the pod (podPidsLimit) or of the machine",
        retry=Retry.NOW,
    )


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


# Part threads: the threads that the process needs, and whether each of them runs.

HANG_SECONDS = 1800.0  # many requests that each run into their time limit, or a slow disk, take minutes


class LivePart(Protocol):
    """A part of the process that has to run."""

    def fault(self) -> str:
        """Return why the part does not run, "" if it does. Never wait for anything."""


class NeededParts:
    """The parts that have to run now. Any thread may call any method; none waits."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._parts: WeakSet[LivePart] = WeakSet()

    def add(self, part: LivePart) -> None:
        """Require that a part runs from now on."""
        with self._mutex:
            self._parts.add(part)

    def release(self, part: LivePart) -> None:
        """Allow a part to end."""
        with self._mutex:
            self._parts.discard(part)

    def faults(self) -> tuple[str, ...]:
        """Return why parts do not run, a sentence for each."""
        with self._mutex:
            parts = tuple(self._parts)
        return tuple(sorted(fault for part in parts if (fault := part.fault())))


NEEDED = NeededParts()  # one for the whole process, because a probe is answered for the whole process


class PartThread:
    """A daemon thread that is needed from `start` until `release`. Each object is started once.

    `run` gets this object, and does within `turn` what has to end within `hang_s` seconds.
    """

    def __init__(self, name: str, run: Callable[[PartThread], None], *, hang_s: float = HANG_SECONDS) -> None:
        self._name, self._hang_s = name, hang_s
        self._thread = threading.Thread(target=run, args=(self,), name=name, daemon=True)
        self._began: float | None = None  # when the turn under way began

    def start(self) -> None:
        """Start the thread. Raises: NodeError("node.thread"); it is then not needed."""
        start_thread(self._thread)
        NEEDED.add(self)

    def release(self) -> None:
        """Allow the thread to end."""
        NEEDED.release(self)

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for the end of a thread that was started, unless this is called in that thread."""
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def is_alive(self) -> bool:
        """Return whether the thread runs."""
        return self._thread.is_alive()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Return a context that has to end within `hang_s` seconds."""
        self._began = time.monotonic()
        try:
            yield
        finally:
            self._began = None

    def fault(self) -> str:
        """Return why the thread does not work, "" if it does."""
        if not self._thread.is_alive():
            return f"the thread {self._name} has ended"
        began = self._began
        if began is None or (seconds := time.monotonic() - began) <= self._hang_s:
            return ""
        return f"the thread {self._name} has hung for {seconds:.0f} s"


# Loop: a background thread that takes one turn after the other.

log = logging.getLogger(__name__)

FAULT_SECONDS = 1.0


class Loop:
    """Takes turns in a daemon thread. An error in a turn is logged as `failure`; the next comes after `fault_s`.

    An unexpected exception is logged with its traceback. Any thread may call any method. A turn that hangs does not
    keep the process from ending. The process counts as not alive once a turn has taken longer than `hang_s`. A turn
    that waits for hardware may take any time, because a restart would not help.
    """

    def __init__(
        self,
        name: str,
        turn: Callable[[], float | None],
        *,
        failure: str,
        fault_s: float = FAULT_SECONDS,
        hang_s: float = HANG_SECONDS,
    ) -> None:
        self._name, self._turn, self._failure, self._fault_s = name, turn, failure, fault_s
        self._hang_s = hang_s
        self._mutex = threading.Lock()
        self._wake, self._over = threading.Event(), threading.Event()
        self._thread: PartThread | None = None

    @property
    def is_running(self) -> bool:
        """Whether there is a thread that takes turns."""
        return self._thread is not None

    @property
    def is_stopped(self) -> bool:
        """Whether the turn under way is to end soon."""
        return self._over.is_set()

    def start(self) -> None:
        """Start, with a turn at once. A stopped loop may be started again. Raises: NodeError("node.thread")."""
        with self._mutex:
            self._over = threading.Event()  # a thread that hung when it was stopped stays stopped
            self._begin()

    def resume(self) -> None:
        """Take a turn at once, also if the thread has ended because nothing was left to do. Do nothing after `stop`.

        Raises: NodeError("node.thread"); the next call tries again to start the thread.
        """
        with self._mutex:
            self._wake.set()
            if self._thread is None and not self._over.is_set():
                self._begin()

    def wake(self) -> None:
        """Take the next turn at once, if the loop runs."""
        self._wake.set()

    def stop(self, timeout_s: float = 0.0) -> None:
        """Take no more turns, and wait at most `timeout_s` seconds for the turn under way."""
        with self._mutex:
            self._over.set()
            self._wake.set()
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.release()
            thread.join(timeout_s)

    def _begin(self) -> None:
        thread = PartThread(self._name, partial(self._run, self._over), hang_s=self._hang_s)
        thread.start()
        self._thread = thread

    def _run(self, over: threading.Event, thread: PartThread) -> None:
        while True:
            self._wake.clear()
            if over.is_set():
                return
            try:
                with thread.turn():
                    pause = self._turn()
            except DriverError as error:
                log.error(self._failure, extra=fields(code=error.code, err=str(error)))  # noqa: TRY400
                pause = self._fault_s
            except Exception:
                log.exception(self._failure)
                pause = self._fault_s
            if pause is not None:
                self._wake.wait(None if pause == math.inf else pause)
            elif self._is_ended(over, thread):
                return

    def _is_ended(self, over: threading.Event, thread: PartThread) -> bool:
        """Return whether the thread ends: nothing is left to do, and no turn was requested meanwhile."""
        with self._mutex:
            if self._wake.is_set() and not over.is_set():
                return False
            if not over.is_set():
                thread.release()
                self._thread = None
            return True


# The request to stop, made by a signal handler and waited for by the main thread.


class StopRequest:
    """Whether the process was asked to stop. `set` takes no lock, so a signal handler may call it at any moment."""

    def __init__(self) -> None:
        self._is_set = False
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLIN)

    def set(self) -> None:
        """Ask the process to stop, and wake the thread that waits."""
        self._is_set = True
        os.eventfd_write(self._descriptor, 1)

    def is_set(self) -> bool:
        """Return whether the process was asked to stop."""
        return self._is_set

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the process is asked to stop, at most `seconds`; return whether it was asked.

        Only one thread may wait.
        """
        self._poll.poll(None if seconds is None else seconds * 1000)
        return self._is_set
