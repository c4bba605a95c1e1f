"""The late log joins its lines into few writes: order, size, and lines of other threads."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from dra_driver.telemetry.late_log import LateLog
from dra_driver.telemetry.logs import set_up

log = logging.getLogger("dra_driver.test")


@dataclass
class Packets:
    """A pipe that keeps writes apart: each read returns one write."""

    reader: int

    def next(self) -> list[str]:
        """Return the messages of the next write."""
        return [json.loads(line)["msg"] for line in os.read(self.reader, 1 << 16).decode().splitlines()]


@pytest.fixture
def packets() -> Iterator[Packets]:
    root = logging.getLogger()
    before = root.handlers[:], root.level, logging._srcfile
    flags = logging.logThreads, logging.logProcesses, logging.logMultiprocessing
    reader, writer = os.pipe2(os.O_DIRECT)
    with os.fdopen(writer, "w", buffering=1) as stream:
        set_up("json", stream=stream)
        yield Packets(reader)
        root.handlers[:], root.level = before[0], before[1]
        logging._srcfile = before[2]
        logging.logThreads, logging.logProcesses, logging.logMultiprocessing = flags
    os.close(reader)


def held(late_log: LateLog, lines: list[str], **values: Any) -> None:
    """Add lines that are all written in one turn, because the turn begins with one that waits for the others."""
    begun, added = threading.Event(), threading.Event()

    def first(_: None) -> None:
        begun.set()
        added.wait(30)

    late_log.add(first, None)
    assert begun.wait(30)
    for line in lines:
        late_log.info(log, line, **values)
    added.set()


def test_the_lines_of_one_turn_are_one_write_in_their_order(packets: Packets) -> None:
    late_log = LateLog()
    late_log.start()
    lines = [f"line {number}" for number in range(20)]
    held(late_log, lines)
    assert packets.next() == lines
    late_log.stop()


def test_one_write_with_several_lines_has_at_most_4096_bytes(packets: Packets) -> None:
    late_log = LateLog()
    late_log.start()
    lines = [f"line {number} {'x' * 1000}" for number in range(7)]
    held(late_log, lines)
    assert [packets.next(), packets.next(), packets.next()] == [lines[:3], lines[3:6], lines[6:]]
    late_log.stop()


def test_a_line_of_another_thread_comes_after_those_that_were_logged_before_it(packets: Packets) -> None:
    late_log = LateLog()
    late_log.start()
    logged, other = threading.Event(), threading.Event()

    def pause(_: None) -> None:
        logged.set()
        other.wait(30)

    late_log.info(log, "first")
    late_log.add(pause, None)
    late_log.info(log, "third")
    assert logged.wait(30)
    log.info("second")
    assert packets.next() == ["first", "second"]
    other.set()
    assert packets.next() == ["third"]
    late_log.stop()


def test_lines_before_a_line_that_fails_are_written(packets: Packets) -> None:
    late_log = LateLog()

    def fail(_: None) -> None:
        raise ValueError("no such claim")

    late_log.start()
    late_log.info(log, "first")
    late_log.add(fail, None)
    late_log.info(log, "last")
    assert packets.next() == ["first"]
    assert packets.next() == ["calls not logged"]
    assert packets.next() == ["last"]
    late_log.stop()
