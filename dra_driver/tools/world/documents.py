"""Kubernetes objects from files and standard input, as people and kubectl write them.

In: paths ("-" is standard input). Out: objects as plain dicts, each with its place; Lists are expanded. What many
ResourceSlices have in common is kept in memory once. Never: executes YAML tags.
"""

from __future__ import annotations

import gc
import json
import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, BinaryIO

import yaml

import dra_driver
from dra_driver.base.errors import InputError
from dra_driver.base.text.json_text import SharedValues
from dra_driver.base.text.yaml_values import MAX_NESTING, Each, TooDeepError, load_yaml
from dra_driver.base.wire import ClassWire, Wire
from dra_driver.simulator.workloads import IMPLICIT, classes_by_resource
from dra_driver.tools.world.access import NoProgress, ProgressLine, ProgressLines

# Texts of files and standard input, and the plain values in them.

STDIN = "-"
TESTS = ".selectors.yaml"  # the end of the names of files with tests of selectors, which lie beside manifests
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


MAX_KEPT = 4 << 20  # in characters: the largest text that is kept to find lines in it
_NOT_YET = "9999"  # later than every time of creation
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
    """Return the files that a path stands for; of a folder, those of manifests. Raises: InputError."""
    folder = Path(path)
    try:
        if path == STDIN or not folder.is_dir():
            return [path]
        named = sorted(str(file) for file in folder.iterdir() if file.suffix in {".yaml", ".yml", ".json"})
        found = [file for file in named if not file.endswith(TESTS)]
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


# DeviceClasses by name: from the given files, the cluster, or the chart.

_PACKAGE = Path(dra_driver.__file__).parent
_PLACES = (_PACKAGE / "deviceclasses", _PACKAGE.parent / "deviceclasses")


class Classes:
    """Classes, searched in this order: files, then the cluster, then the chart."""

    def __init__(self, files: list[Document], cluster: list[ClassWire] | None) -> None:
        self._known: dict[str, tuple[ClassWire, str]] = {}
        for document in shipped_classes() if cluster is None else []:
            self._known[document.name] = document.wire, "shipped"
        for wire in cluster or []:
            self._known[wire["metadata"]["name"]] = wire, "cluster"
        for document in files:
            self._known[document.name] = document.wire, "file"

    def beside(self, files: list[Document]) -> Classes:
        """Return these classes together with those of further files, which win."""
        both = Classes(files, [])
        both._known = self._known | both._known
        return both

    def find(self, name: str, wanted_by: str) -> ClassWire:
        """Return a class, for an object called `wanted_by` in the error. Raises: InputError("input.no-class")."""
        found = self._known.get(name)
        if found is None:
            near = get_close_matches(name, list(self._known), n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise InputError(
                "no-class",
                f"{wanted_by} names DeviceClass {name!r}, which is neither in the files nor otherwise known",
                hint=f"{hint}known: {', '.join(sorted(self._known)) or 'none'}; add a file with the class",
            )
        return found[0]

    def of_extended_resource(self, resource: str) -> str | None:
        """Return the name of the class that serves an extended resource, or None if there is none.

        A class of a file without a creation time is still to be made, and so the newest.

        Source: Kubernetes API resource/v1 DeviceClassSpec.extendedResourceName and its implicit name.
        """
        if resource.startswith(IMPLICIT):
            return resource.removeprefix(IMPLICIT)
        dated = [
            {**wire, "metadata": {"creationTimestamp": _NOT_YET, **wire["metadata"]}} if origin == "file" else wire
            for wire, origin in self._known.values()
        ]
        return classes_by_resource(dated).get(resource)


def shipped_classes() -> list[Document]:
    """Read the chart's own classes; return none if the installation lacks them."""
    for folder in _PLACES:
        if folder.is_dir():
            return [document for document in read_documents([str(folder)]) if document.kind == "DeviceClass"]
    return []
