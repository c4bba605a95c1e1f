"""Strict files: YAML that people write for an agent, read field by field, with all mistakes reported at once.

In: a path, and code that reads fields. Out: nothing, or one error that lists each mistake with its line.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from dra_driver.documents.document import read_document, with_line
from dra_driver.documents.fields import Fields
from dra_driver.model.errors import InputError

T = TypeVar("T")


def read_strictly(path: Path, decode: Callable[[Fields], T], code: str, what: str) -> T:
    """Return what `decode` makes of a file's fields; a field that it does not read is a mistake too.

    `code` is the error's code without "input.", and `what` is what the error's message calls the file.

    Raises: InputError(`code`) with every mistake; "input.unreadable", "input.too-large", "input.not-yaml".
    """
    lines: dict[str, int] = {}
    faults: list[str] = []
    root = Fields(read_document(path, lines), "", faults)
    decoded = decode(root)
    root.close()
    if faults:
        listed = "\n  ".join(with_line(fault, lines) for fault in faults)
        count = f"{len(faults)} {'mistakes' if len(faults) > 1 else 'mistake'}"
        raise InputError(code, f"{what} {path} has {count}:\n  {listed}")
    return decoded


def check_version(root: Fields, version: str, known: str = "") -> None:
    """Record a mistake unless the file has the expected version; `known` is added to the message of the mistake."""
    found = root.optional_text("version")
    if found != version:
        expected = f"expected {version!r}{known}"
        root.fault("version", f"{expected}, got {found!r}" if found else f"missing, {expected}")
