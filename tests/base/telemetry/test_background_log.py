"""Lines that a thread writes: in order, none lost at the end, and nobody waits for who reads them."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading

import pytest

from dra_driver.base.telemetry import logs
from dra_driver.base.telemetry.logs import BackgroundHandler, TextFormatter
from tests.support.waiting import until


class Held(logging.Handler):
    """A handler that writes nothing until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.seen = threading.Event(), []

    def emit(self, record: logging.LogRecord) -> None:
        self.gate.wait(60)
        self.seen.append(record.getMessage())


@pytest.fixture
def log():
    made = logging.Logger("dra_driver.test", logging.INFO)
    yield made
    for handler in made.handlers:
        handler.close()


def test_a_reader_that_does_not_read_holds_up_no_line_and_dropped_ones_are_counted(log, monkeypatch) -> None:
    monkeypatch.setattr(logs, "MAX_LINES", 3)
    held = Held()
    log.addHandler(BackgroundHandler(held))
    for number in range(10):
        log.info("line %d", number)
    held.gate.set()
    until(lambda: held.seen and "dropped" in held.seen[-1])
    count = len(held.seen) - 1
    numbers = [int(line.removeprefix("line ")) for line in held.seen[:count]]
    assert numbers == sorted(set(numbers))
    assert held.seen[-1] == f"{10 - count} lines of the log were dropped, because nobody read them"


def test_lines_of_many_threads_are_all_written_each_threads_in_order(log) -> None:
    held = Held()
    held.gate.set()
    handler = BackgroundHandler(held)
    log.addHandler(handler)
    threads = [threading.Thread(target=lambda n=n: [log.info("%d %d", n, i) for i in range(50)]) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    handler.close()
    assert len(held.seen) == 200
    for number in range(4):
        assert [s for s in held.seen if s.startswith(f"{number} ")] == [f"{number} {i}" for i in range(50)]


def test_an_error_with_its_traceback_stays_one_record(log) -> None:
    lines = []

    class Formatted(Held):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(TextFormatter().format(record))

    handler = BackgroundHandler(Formatted())
    log.addHandler(handler)
    try:
        raise ZeroDivisionError("oops")
    except ZeroDivisionError:
        log.exception("bug", extra=logs.fields(code="driver.bug"))
    handler.close()
    assert "ERROR   test: bug code=driver.bug\nTraceback" in lines[0]
    assert lines[0].endswith("ZeroDivisionError: oops")


_PROGRAM = """
import logging, os, sys
from dra_driver.base.telemetry import logs
logs.set_up("text", is_in_background=True)
log = logging.getLogger("dra_driver.test")
for number in range(500):
    log.info("line %d", number)
if sys.argv[1] == "exit":
    logs.finish()
    os._exit(0)
"""


@pytest.mark.parametrize("end", ["exit", "return"])
def test_what_is_left_is_written_at_the_end_of_the_process(end: str) -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM, end], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr.count("line ") == 500


def test_the_end_of_the_process_does_not_wait_for_a_reader_for_ever() -> None:
    read, write = os.pipe()
    program = _PROGRAM.replace("range(500)", "range(9000)")  # more than a pipe holds
    with os.fdopen(read), os.fdopen(write, "wb") as pipe:
        done = subprocess.run([sys.executable, "-c", program, "exit"], stderr=pipe, timeout=60, check=True)
    assert done.returncode == 0
