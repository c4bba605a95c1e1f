"""Documents: Kubernetes objects from files and standard input, as people and kubectl write them.

In: paths ("-" is standard input). Out: objects as plain dicts, each with where it was found; Lists are opened. What may
be nested deeply is read by YAML's pure loader: the one in C ends the process then. Never runs tags.
"""

from __future__ import annotations

import json
import os
import select
import stat
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dra_driver.model.errors import InputError
from dra_driver.model.wire import Wire

STDIN = "-"
SIZE_MAX = 256 << 20  # bytes; a fleet's ResourceSlices are some hundred kB a node
NESTING_MAX = 200  # levels; the loader needs several frames for each
SILENT_SECONDS = 5.0
_LISTS_MAX = 4  # levels of Lists in Lists

Step = str | int


@dataclass(frozen=True, slots=True)
class Document:
    """One object. `path` leads to it inside document number `number` of the file (a List's entries)."""

    origin: str
    number: int
    path: tuple[Step, ...]
    wire: Wire

    @property
    def kind(self) -> str:
        """What it says it is."""
        return str(self.wire.get("kind") or "")

    @property
    def name(self) -> str:
        """The name under metadata."""
        metadata = self.wire.get("metadata")
        found = (metadata.get("name") or metadata.get("generateName")) if isinstance(metadata, dict) else None
        return found if isinstance(found, str) else "?"


def read_documents(paths: Sequence[str]) -> list[Document]:
    """Read all objects of some files. A folder stands for the YAML and JSON files in it.

    Raises: InputError("input.unreadable", "input.too-large", "input.not-yaml", "input.not-an-object").
    """
    found: list[Document] = []
    for path in paths:
        for origin in files_of(path):
            found.extend(parse_documents(read_text(origin), origin))
    return found


def read_text(path: str) -> str:
    """Read a file, or standard input. Raises: InputError."""
    try:
        if path == STDIN:
            raw = sys.stdin.buffer.read(SIZE_MAX + 1)
        else:
            with Path(path).open("rb") as file:
                raw = file.read(SIZE_MAX + 1)
    except (OSError, ValueError) as fault:
        reason = fault.strerror if isinstance(fault, OSError) else str(fault)
        raise InputError("unreadable", f"{shown(path)} can't be read: {reason}") from fault
    if len(raw) > SIZE_MAX:
        raise InputError("too-large", f"{shown(path)} is larger than {SIZE_MAX >> 20} MiB")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        raise InputError("unreadable", f"{shown(path)} is not UTF-8 text: byte {fault.start}") from fault


def stdin_has_something() -> bool:
    """Tell whether something is piped into this process; a pipe that stays silent is not waited for."""
    try:
        number = sys.stdin.fileno()
        mode = os.fstat(number).st_mode
    except (AttributeError, OSError, ValueError):
        return False
    if stat.S_ISREG(mode):
        return True
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return False
    if select.select([number], [], [], SILENT_SECONDS)[0]:
        return True
    said = f"dra-driver: nothing came on standard input for {SILENT_SECONDS:.0f} s; give - to wait for it"
    print(said, file=sys.stderr)
    return False


def parse_documents(text: str, origin: str) -> Iterator[Document]:
    """Read the objects in a text. Raises: InputError."""
    for number, loaded in enumerate(load_text(text, origin)):
        if loaded is None:
            continue  # an empty document: a file that begins or ends with ---
        yield from _objects(loaded, origin, number, ())


def shown(path: str) -> str:
    """Name a file for people."""
    return "standard input" if path == STDIN else path


def files_of(path: str) -> list[str]:
    """Give the files that a path stands for. Raises: InputError."""
    folder = Path(path)
    if path == STDIN or not folder.is_dir():
        return [path]
    found = sorted(str(file) for file in folder.iterdir() if file.suffix in {".yaml", ".yml", ".json"})
    if not found:
        raise InputError("unreadable", f"there is no YAML or JSON file in {path}")
    return found


def _objects(loaded: Any, origin: str, number: int, path: tuple[Step, ...]) -> Iterator[Document]:
    if len(path) > 2 * _LISTS_MAX:
        raise InputError("not-an-object", f"{shown(origin)}: document {number + 1} holds lists in lists")
    if isinstance(loaded, list):
        entries: list[Any] = loaded
    elif isinstance(loaded, dict) and isinstance(loaded.get("items"), list):
        entries, path = loaded["items"], (*path, "items")
        kind = str(loaded.get("kind") or "")
        if kind.endswith("List") and kind != "List":  # the API server leaves the kind out in typed lists
            entries = [{"kind": kind.removesuffix("List"), **e} if isinstance(e, dict) else e for e in entries]
    elif isinstance(loaded, dict):
        if not isinstance(loaded.get("kind"), str):
            raise InputError(
                "not-an-object", f"{shown(origin)}: document {number + 1} has no kind: it is no Kubernetes object"
            )
        yield Document(origin, number, path, loaded)
        return
    else:
        what = type(loaded).__name__
        raise InputError("not-an-object", f"{shown(origin)}: document {number + 1} is no Kubernetes object but {what}")
    for position, entry in enumerate(entries):
        yield from _objects(entry, origin, number, (*path, position))


def load_text(text: str, origin: str) -> list[Any]:
    """Read the documents of a text as plain values. Raises: InputError."""
    stripped = text.lstrip()
    if stripped[:1] in {"{", "["}:
        try:
            return [json.loads(text)]
        except RecursionError as fault:
            raise _nested(origin) from fault
        except ValueError:
            pass  # YAML's flow style, or several JSON documents after each other: the YAML reader says what is wrong
    return _load_yaml(text, origin)


def _load_yaml(text: str, origin: str) -> list[Any]:
    import yaml

    quick = getattr(yaml, "CSafeLoader", None) if _is_shallow(text) else None
    chosen: Any = quick or _guarded_loader()

    class Loader(chosen):  # type: ignore[misc]
        """Without YAML's dates, which JSON does not have."""

    Loader.yaml_implicit_resolvers = {
        first: [one for one in rows if one[0] != "tag:yaml.org,2002:timestamp"]
        for first, rows in chosen.yaml_implicit_resolvers.items()
    }
    try:
        return list(yaml.load_all(text, Loader=Loader))
    except RecursionError as fault:
        raise _nested(origin) from fault
    except (yaml.YAMLError, ValueError, TypeError) as fault:
        mark = getattr(fault, "problem_mark", None)
        where = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        reason = str(getattr(fault, "problem", None) or " ".join(str(fault).split()))
        raise InputError("not-yaml", f"{shown(origin)}{where} is neither YAML nor JSON: {reason}") from fault


def _guarded_loader() -> Any:
    """Give the pure loader with a bound on nesting."""
    import yaml

    class Guarded(yaml.SafeLoader):
        """Counts levels."""

        level = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            self.level += 1
            if self.level > NESTING_MAX:
                raise RecursionError
            try:
                return super().compose_node(parent, index)
            finally:
                self.level -= 1

    return Guarded


def _is_shallow(text: str) -> bool:
    """Tell whether a text can't nest deeply, whatever its quotes mean: then the loader in C, 10 times quicker, is safe.

    Flow levels need an opening bracket each; block levels a column or an indicator each, twice at most for sequences
    that stand in the column of their key.
    """
    brackets = text.replace("{}", "").replace("[]", "")
    if brackets.count("{") + brackets.count("[") > NESTING_MAX // 2:
        return False
    deepest = 0
    for line in text.split("\n"):
        bound = len(line) - len(line.lstrip())
        if bound + len(line) // 2 > deepest:
            bound += line.count("- ") + line.count("-\t") + line.count("? ") + line.count(": ")
            deepest = max(deepest, bound)
    return deepest <= NESTING_MAX // 4


def _nested(origin: str) -> InputError:
    return InputError("not-yaml", f"{shown(origin)} is nested more than {NESTING_MAX} levels deep")
