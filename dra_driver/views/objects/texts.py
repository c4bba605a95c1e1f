"""Texts of files and standard input, and the plain values in them.

In: paths ("-" is standard input). Out: texts, and the documents of a text (JSON or YAML). Never: executes YAML tags.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import yaml

from dra_driver.documents.yaml_values import MAX_NESTING, Each, TooDeepError, load_yaml
from dra_driver.model.errors import InputError

STDIN = "-"
MAX_SIZE = 512 << 20  # in bytes; JSON of this size takes twice as much memory, and what its objects take
_CHUNK = 1 << 20
_MAX_SHOWN = 4096  # in characters of a path; anything longer can't be a file


def read_text(path: str) -> str:
    """Read a file, or standard input. Raises: InputError."""
    try:
        if path == STDIN:
            return text_of(sys.stdin.buffer, path)
        with Path(path).open("rb") as file:
            return text_of(file, path)
    except (OSError, ValueError) as fault:
        raise unreadable(path, fault) from fault


def unreadable(path: str, fault: OSError | ValueError) -> InputError:
    """Return the error for a file that can't be read."""
    reason = fault.strerror if isinstance(fault, OSError) else str(fault)
    return InputError("unreadable", f"{shown(path)} can't be read: {reason}")


def text_of(file: BinaryIO, path: str) -> str:
    """Return the text of an open file. Raises: InputError, OSError."""
    raw = bytearray()
    while len(raw) <= MAX_SIZE and (chunk := file.read(_CHUNK)):  # one read of the limit would need all that memory
        raw += chunk
    if len(raw) > MAX_SIZE:
        raise InputError("too-large", f"{shown(path)} is larger than {MAX_SIZE >> 20} MiB")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        raise InputError("unreadable", f"{shown(path)} is not UTF-8 text: byte {fault.start}") from fault


def shown(path: str) -> str:
    """Return the name of a file as shown to people."""
    if path == STDIN:
        return "standard input"
    return path if len(path) <= _MAX_SHOWN else f"{path[:_MAX_SHOWN]}… ({len(path):,} characters)"


def load_text(text: str, origin: str, each: Each | None = None) -> list[Any]:
    """Read the documents of a text as plain values; `each` is called with every object in them. Raises: InputError."""
    if text[:_MAX_SHOWN].lstrip()[:1] in {"{", "["}:
        try:
            return [_shallow(json.loads(text, object_hook=each and _hook(each)), origin)]
        except RecursionError as fault:
            raise nested_too_deeply(origin) from fault
        except ValueError:
            pass  # YAML's flow style, or several JSON documents in a row: the YAML reader below accepts or reports it
    try:
        return list(load_yaml(text, each))
    except TooDeepError as fault:
        raise nested_too_deeply(origin) from fault
    except yaml.YAMLError as fault:
        mark = getattr(fault, "problem_mark", None)
        where = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        reason = str(getattr(fault, "problem", None) or " ".join(str(fault).split()))
        raise InputError("not-yaml", f"{shown(origin)}{where} is neither YAML nor JSON: {reason}") from fault


def _hook(each: Each) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a hook of JSON's reader that calls `each` with every Kubernetes object before the next one is read."""

    def hook(value: dict[str, Any]) -> dict[str, Any]:
        metadata = value.get("metadata")
        if isinstance(metadata, dict) and "name" in metadata:
            each(value)
        return value

    return hook


def _shallow(value: Any, origin: str) -> Any:
    """Check that JSON is not nested too deeply, since the code that reads it afterwards may recurse."""
    level = [value]
    for _ in range(MAX_NESTING):
        level = [
            inner
            for one in level
            for inner in (one.values() if type(one) is dict else one if type(one) is list else ())
            if type(inner) is dict or type(inner) is list
        ]
        if not level:
            return value
    raise nested_too_deeply(origin)


def nested_too_deeply(origin: str) -> InputError:
    """Return the error for a document that code which recurses could not read."""
    return InputError("not-yaml", f"{shown(origin)} is nested more than {MAX_NESTING} levels deep")
