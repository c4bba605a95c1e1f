"""Kubernetes objects from files and standard input, as people and kubectl write them.

In: paths ("-" is standard input). Out: objects as plain dicts, each with its place; Lists are expanded. What many
ResourceSlices have in common is kept in memory once. Never: executes YAML tags.
"""

from __future__ import annotations

import gc
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dra_driver.documents.shared_values import SharedValues
from dra_driver.model.errors import InputError
from dra_driver.model.wire import Wire
from dra_driver.views.objects.texts import STDIN, load_text, shown, text_of, unreadable
from dra_driver.views.progress import NoProgress, ProgressLine, ProgressLines

MAX_KEPT = 4 << 20  # in characters: the largest text that is kept to find lines in it
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
    entries = _Entries(line)
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


class _Entries:
    """Counts the objects while they are read, and shares what they have in common."""

    def __init__(self, line: ProgressLine) -> None:
        self._line, self._count, self._values = line, 0, SharedValues()

    def add(self, value: Any) -> None:
        """Count an object, and share its parts with those that were read before."""
        self._count += 1
        self._line.update(self._count)
        self._values.share(value)


def _load_file(origin: str, entries: _Entries) -> tuple[list[Any], str]:
    """Read the documents of a file.

    Standard input and a pipe can't be read again, so their text is returned too, if it is short enough to look for a
    line in it.
    """
    try:
        if origin == STDIN:
            text, is_pipe = text_of(sys.stdin.buffer, origin), True
        else:
            with Path(origin).open("rb") as file:
                text, is_pipe = text_of(file, origin), stat.S_ISFIFO(os.fstat(file.fileno()).st_mode)
    except (OSError, ValueError) as fault:
        raise unreadable(origin, fault) from fault
    return load_text(text, origin, entries.add), text if is_pipe and len(text) <= MAX_KEPT else ""


def parse_documents(text: str, origin: str) -> Iterator[Document]:
    """Read the objects in a text. Raises: InputError."""
    for number, loaded in enumerate(load_text(text, origin)):
        if loaded is None:
            continue  # an empty document, as in a file that begins or ends with ---
        yield from _objects(loaded, origin, number, (), text)


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


def _is_list(loaded: dict[str, Any]) -> bool:
    """Return whether an object is a list of objects. A program in Go writes `null` for an empty list."""
    items = loaded.get("items", ())
    return isinstance(items, list) or (items is None and str(loaded.get("kind")).endswith("List"))


def _objects(loaded: Any, origin: str, number: int, path: tuple[Step, ...], text: str) -> Iterator[Document]:
    if len(path) > 2 * _MAX_LISTS:
        raise InputError("not-an-object", f"{shown(origin)}: document {number + 1} holds lists in lists")
    if isinstance(loaded, list):
        entries: list[Any] = loaded
    elif isinstance(loaded, dict) and _is_list(loaded):
        entries, path = loaded["items"] or [], (*path, "items")
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
