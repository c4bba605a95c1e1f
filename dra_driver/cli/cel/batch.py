"""`dra-driver cel batch`: evaluate many expressions for another program.

In: JSON lines (their format: docs/selectors.md). Out: a JSON line for each, in the same order; a line that can't be
read is answered by an object with `error`. Lines are read one at a time, so a file may be larger than memory.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import click

from dra_driver.model.errors import DriverError, ExitCode, InputError
from dra_driver.model.wire import Wire
from dra_driver.selectors.batch import BatchChecker, has_defaults
from dra_driver.views.envelope import DocumentKind, OutputDocument, batch_fault
from dra_driver.views.objects.texts import STDIN, shown

_MAX_LINE = 256 << 20  # in bytes


@click.command(name="batch")
@click.argument("path", metavar="FILE")
def cel_batch_command(path: str) -> int:
    """Evaluate many expressions for another program: each line of FILE (- is standard input) is a JSON object.

    The output has a line for each, in the same order.

    \b
    echo '{"id": 1, "expression": "device.driver == 2"}' | dra-driver cel batch -

    \b
    A line:    {"id", "expression", "driver", "devices": [resource.k8s.io/v1 Device...],
                "kubernetes": "1.35", "gates": {"NAME": bool}, "environment": "stored"|"new"}
    Defaults:  a first line without "expression" sets them for all others
    Answer:    {"apiVersion", "kind": "SelectorVerdict", "id", "compileError": null|text, "errorKind", "type",
                "maxCost", "admissible", "results": [{"match": bool} | {"error": text}]}
    A line that can't be read: {"apiVersion", "kind": "BatchFault", "id", "line", "error"}

    \b
    Exit status:
      0  every line was answered       3  the file or some of its lines could not be read
      2  the command line is wrong
    """  # noqa: D301
    return answer_file(path)


def answer_file(path: str) -> int:
    """Answer every line of a file, "-" for standard input, and return the exit status. Raises: InputError."""
    with _opened(path) as file:
        return _answer(file)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[IO[bytes]]:
    if path == STDIN:
        yield sys.stdin.buffer
        return
    try:
        file = Path(path).open("rb")  # noqa: SIM115  (closed below; only a failure to open is an input error)
    except OSError as fault:
        raise InputError("unreadable", f"{shown(path)} can't be read: {fault.strerror}") from fault
    with file:
        yield file


def _answer(file: IO[bytes]) -> int:
    """Answer line by line. Each answer is written at once, because the program at the other end may wait for it."""
    checker = BatchChecker({})
    has_begun, bad = False, 0
    for number, raw in enumerate(_lines(file), 1):
        if not raw.strip():
            continue
        try:
            line = _parsed(raw)
            if not has_begun and has_defaults(line):
                checker, has_begun = BatchChecker(line), True
                continue
            has_begun = True
            answer = _verdict(checker.check(line))
        except DriverError as fault:
            bad += 1
            answer = _unread(raw, number, fault.message)
        except Exception as fault:  # noqa: BLE001  (a fault in one line must not stop the others)
            bad += 1
            text = f"this is a bug in dra-driver: {type(fault).__name__}: {fault}"
            answer = _unread(raw, number, text)
        sys.stdout.write(f"{json.dumps(answer)}\n")
        sys.stdout.flush()
    return ExitCode.BAD_INPUT if bad else ExitCode.OK


def _verdict(answer: Wire) -> Wire:
    """Return the document of an answer. Its `kind` becomes `errorKind`, because a document has a `kind` of its own."""
    content = {("errorKind" if key == "kind" else key): value for key, value in answer.items()}
    return OutputDocument(DocumentKind.SELECTOR_VERDICT, content).wire()


def _unread(raw: bytes, number: int, error: str) -> Wire:
    return batch_fault(_id(raw), number, error).wire()


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines. A line longer than `_MAX_LINE` is truncated, and is then reported because it is not JSON."""
    while raw := file.readline(_MAX_LINE):
        yield raw
        while raw and not raw.endswith(b"\n"):
            raw = file.readline(_MAX_LINE)


def _parsed(raw: bytes) -> dict[str, Any]:
    try:
        line = json.loads(raw.decode("utf-8-sig"))
    except RecursionError as fault:
        raise InputError("batch", "the line is nested too deeply") from fault
    except ValueError as fault:
        raise InputError("batch", f"the line is not JSON: {fault}") from fault
    if not isinstance(line, dict):
        raise InputError("batch", "the line is not a JSON object")
    return line


def _id(raw: bytes) -> Any:
    """Return the id of an invalid line, or None if the id can't be read."""
    try:
        return _parsed(raw).get("id")
    except InputError:
        return None
