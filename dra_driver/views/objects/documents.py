"""Kubernetes objects from files and standard input, as people and kubectl write them.

In: paths ("-" is standard input). Out: objects as plain dicts, each with its place; Lists are expanded. What many
ResourceSlices have in common is parsed once, and kept in memory once. Never: executes YAML tags.
"""

from __future__ import annotations

import gc
import json
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import yaml

from dra_driver.documents.json_stream import load_json
from dra_driver.documents.kept_stream import kept_stream
from dra_driver.documents.yaml_stream import load_yaml_stream
from dra_driver.documents.yaml_values import MAX_NESTING, Each, TooDeepError, load_yaml
from dra_driver.model.errors import InputError
from dra_driver.model.wire import Wire
from dra_driver.views.objects.equal_slices import EqualSlices
from dra_driver.views.progress import NoProgress, ProgressLines

STDIN = "-"
MAX_KEPT = 4 << 20  # in bytes: the largest text that is kept to find lines in it
MAX_SIZE = 256 << 20  # in bytes, for text
MAX_STREAM = 1 << 30  # in bytes, for a file that is read piece by piece, so that only a part of its text is in memory
_MAX_SHOWN = 4096  # in characters of a path; anything longer can't be a file
_MAX_LISTS = 4  # nesting levels of Lists in Lists

Step = str | int


@dataclass(frozen=True, slots=True)
class Document:
    """One object. `path` leads to it inside document number `number` of the file (for the entries of a List).

    `text` is the text of the whole input, if that can't be read once more to find a line; otherwise "".
    """

    origin: str
    number: int
    path: tuple[Step, ...]
    wire: Wire
    text: str = ""

    @property
    def kind(self) -> str:
        """The object's own `kind`."""
        return str(self.wire.get("kind") or "")

    @property
    def name(self) -> str:
        """The name in the object's metadata."""
        metadata = self.wire.get("metadata")
        found = (metadata.get("name") or metadata.get("generateName")) if isinstance(metadata, dict) else None
        return found if isinstance(found, str) else "?"


def read_documents(paths: Sequence[str], lines: ProgressLines = NoProgress) -> list[Document]:
    """Read all objects of some files; `lines` shows the progress. A folder stands for the YAML and JSON files in it.

    Raises: InputError("input.unreadable", "input.too-large", "input.not-yaml", "input.not-an-object").
    """
    found: list[Document] = []
    line = lines("objects read", 0)
    entries = EqualSlices(line)
    try:
        for path in paths:
            for origin in files_of(path):
                with _without_collection():
                    values, text = _load_file(origin, entries)
                    for number, loaded in enumerate(values):
                        if loaded is not None:  # None is an empty document, as in a file that begins or ends with ---
                            found.extend(_objects(loaded, origin, number, (), text))
    finally:
        line.close()
    return found


@contextmanager
def _without_collection() -> Iterator[None]:
    """Pause the garbage collector: it would scan millions of new values again and again, which hold no cycles."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _load_file(origin: str, entries: EqualSlices) -> tuple[list[Any], str]:
    """Read the documents of a file piece by piece (a JSON object, or YAML as kubectl writes it), or else as one text.

    Standard input and a pipe can't be read again, so their text is returned too, if it is short enough to look for a
    line in it.
    """
    try:
        if origin == STDIN:
            return _load_pipe(sys.stdin.buffer, origin, entries)
        with Path(origin).open("rb") as file:
            status = os.fstat(file.fileno())
            if stat.S_ISFIFO(status.st_mode):
                return _load_pipe(file, origin, entries)
            is_streamed = stat.S_ISREG(status.st_mode) and status.st_size <= MAX_STREAM
            found = _streamed(file, origin, entries) if is_streamed else None
    except (OSError, ValueError) as fault:
        raise _unreadable(origin, fault) from fault
    return (load_text(read_text(origin), origin, entries.share) if found is None else found), ""


def _load_pipe(file: BinaryIO, origin: str, entries: EqualSlices) -> tuple[list[Any], str]:
    """Read the documents of a file that can be read only once, and its text if it is short. Raises: OSError."""
    with kept_stream(file, MAX_STREAM + 1) as kept:
        found = _streamed(kept, origin, entries)
        is_short = kept.seek(0, os.SEEK_END) <= MAX_KEPT
        kept.seek(0)
        text = _text_of(kept, origin) if found is None or is_short else ""
        values = load_text(text, origin, entries.share) if found is None else found
        return values, text if is_short else ""


def _streamed(file: BinaryIO, origin: str, entries: EqualSlices) -> list[Any] | None:
    """Return the documents of a file that can be read piece by piece; None for any other. Raises: InputError."""
    try:
        return [load_json(file, entries)]
    except RecursionError as fault:
        raise _nested(origin) from fault
    except ValueError:
        file.seek(0)
    try:
        return load_yaml_stream(file, entries)
    except (ValueError, TooDeepError, yaml.YAMLError):
        return None


def read_text(path: str) -> str:
    """Read a file, or standard input. Raises: InputError."""
    try:
        if path == STDIN:
            return _text_of(sys.stdin.buffer, path)
        with Path(path).open("rb") as file:
            return _text_of(file, path)
    except (OSError, ValueError) as fault:
        raise _unreadable(path, fault) from fault


def _unreadable(path: str, fault: OSError | ValueError) -> InputError:
    reason = fault.strerror if isinstance(fault, OSError) else str(fault)
    return InputError("unreadable", f"{shown(path)} can't be read: {reason}")


def _text_of(file: BinaryIO, path: str) -> str:
    """Return the text of an open file. Raises: InputError, OSError."""
    raw = file.read(MAX_SIZE + 1)
    if len(raw) > MAX_SIZE:
        raise InputError("too-large", f"{shown(path)} is larger than {MAX_SIZE >> 20} MiB")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        raise InputError("unreadable", f"{shown(path)} is not UTF-8 text: byte {fault.start}") from fault


def parse_documents(text: str, origin: str) -> Iterator[Document]:
    """Read the objects in a text. Raises: InputError."""
    for number, loaded in enumerate(load_text(text, origin)):
        if loaded is None:
            continue  # an empty document, as in a file that begins or ends with ---
        yield from _objects(loaded, origin, number, (), text)


def shown(path: str) -> str:
    """Return the name of a file as shown to people."""
    if path == STDIN:
        return "standard input"
    return path if len(path) <= _MAX_SHOWN else f"{path[:_MAX_SHOWN]}… ({len(path):,} characters)"


def files_of(path: str) -> list[str]:
    """Return the files that a path stands for. Raises: InputError."""
    folder = Path(path)
    try:
        if path == STDIN or not folder.is_dir():
            return [path]
        found = sorted(str(file) for file in folder.iterdir() if file.suffix in {".yaml", ".yml", ".json"})
    except OSError as fault:
        raise InputError("unreadable", f"{shown(path)} can't be read: {fault.strerror}") from fault
    if not found:
        raise InputError("unreadable", f"there is no YAML or JSON file in {path}")
    return found


def _objects(loaded: Any, origin: str, number: int, path: tuple[Step, ...], text: str) -> Iterator[Document]:
    if len(path) > 2 * _MAX_LISTS:
        raise InputError("not-an-object", f"{shown(origin)}: document {number + 1} holds lists in lists")
    if isinstance(loaded, list):
        entries: list[Any] = loaded
    elif isinstance(loaded, dict) and isinstance(loaded.get("items"), list):
        entries, path = loaded["items"], (*path, "items")
        kind = str(loaded.get("kind") or "")
        if kind.endswith("List") and kind != "List":  # the API server omits `kind` from the items of typed lists
            own = {"kind": kind.removesuffix("List")}
            if isinstance(loaded.get("apiVersion"), str):
                own["apiVersion"] = loaded["apiVersion"]
            entries = [{**own, **e} if isinstance(e, dict) else e for e in entries]
    elif isinstance(loaded, dict):
        if not isinstance(loaded.get("kind"), str):
            raise InputError(
                "not-an-object", f"{shown(origin)}: document {number + 1} has no kind: it is not a Kubernetes object"
            )
        yield Document(origin, number, path, loaded, text)
        return
    else:
        what = type(loaded).__name__
        raise InputError(
            "not-an-object", f"{shown(origin)}: document {number + 1} is not a Kubernetes object but {what}"
        )
    for position, entry in enumerate(entries):
        yield from _objects(entry, origin, number, (*path, position), text)


def load_text(text: str, origin: str, each: Each | None = None) -> list[Any]:
    """Read the documents of a text as plain values. Raises: InputError."""
    stripped = text.lstrip()
    if stripped[:1] in {"{", "["}:
        try:
            return [_shallow(json.loads(text), origin)]
        except RecursionError as fault:
            raise _nested(origin) from fault
        except ValueError:
            pass  # YAML's flow style, or several JSON documents in a row: the YAML reader below accepts or reports it
    try:
        return list(load_yaml(text, each))
    except TooDeepError as fault:
        raise _nested(origin) from fault
    except yaml.YAMLError as fault:
        mark = getattr(fault, "problem_mark", None)
        where = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        reason = str(getattr(fault, "problem", None) or " ".join(str(fault).split()))
        raise InputError("not-yaml", f"{shown(origin)}{where} is neither YAML nor JSON: {reason}") from fault


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
    raise _nested(origin)


def _nested(origin: str) -> InputError:
    return InputError("not-yaml", f"{shown(origin)} is nested more than {MAX_NESTING} levels deep")
