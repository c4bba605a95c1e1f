"""Strict files: YAML that people write for an agent, read as a model, with all mistakes at once.

In: a path, and the model of the file (`section`). Out: the file as that model, or one InputError that lists its
mistakes, each with its line and its path.
Importing this module costs megabytes of memory, so an agent imports it only if it has such a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from dra_driver.documents.document import line_of, read_document
from dra_driver.documents.section import MAX_FAULTS, Section, complete, shortened
from dra_driver.model.errors import InputError

MAX_LISTED = 50  # mistakes of one file
_MAX_NAME = 100  # characters of a field's name that a mistake repeats

S = TypeVar("S", bound=Section)


def read_strictly(
    path: Path,
    model: type[S] | Callable[[object], type[S]],
    code: str,
    what: str,
    *,
    hint: str = "",
    context: Any = None,
) -> S:
    """Return a file as a model, or as the one that `model` chooses for its content.

    `code` is the error's code without "input.", and `what` is what the error's message calls the file; `context` goes
    to the validators.

    Raises: InputError(`code`) with every mistake; "input.unreadable", "input.too-large", "input.not-yaml".
    """
    lines: dict[str, int] = {}
    content = read_document(path, lines)
    try:
        chosen = cast("type[S]", model if isinstance(model, type) else model(content))
        return chosen.model_validate(content, context=context)
    except ValidationError as error:
        found = error.errors(include_url=False)
    placed = sorted(((line_of(_path(one["loc"]), lines), one) for one in found), key=lambda place: place[0] or 0)
    listed = [_line(line, one) for line, one in placed[:MAX_LISTED]]
    if len(found) > MAX_LISTED:
        listed.append("…")
    count = f"more than {MAX_FAULTS}" if len(found) > MAX_FAULTS else str(len(found))
    count += " mistakes" if len(found) > 1 else " mistake"
    raise InputError(code, "\n  ".join([f"{what} {path} has {count}:", *listed]), hint=hint)


def _line(line: int | None, error: ErrorDetails) -> str:
    at = f"line {line}: " if line else ""
    return f"{at}{_path(error['loc'], _shown) or 'document'}: {complete(error)}"


def _path(loc: Iterable[str | int], show: Callable[[str], str] = str) -> str:
    """Return the path of a field as users write it; the name of a field is shown by `show`."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{show(part)}" for part in loc if part != "[key]")
    return "".join(parts).removeprefix(".")


def _shown(name: str) -> str:
    cut = shortened(name, _MAX_NAME)
    return cut if cut.isprintable() else repr(cut)  # a name may hold orders to a terminal
