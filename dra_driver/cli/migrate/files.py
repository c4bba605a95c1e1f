"""The files of `dra-driver migrate`: all are read before any is written, and each is replaced atomically.

In: paths. Out: texts, and changed files: a reader sees either the old file or the new one, which has the mode and the
owner of the old.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from dra_driver.migrate import Migrated, SourceText
from dra_driver.model.errors import InputError, UsageError
from dra_driver.views.objects.documents import files_of
from dra_driver.views.objects.texts import STDIN, read_text, shown

_BOM = b"\xef\xbb\xbf"


def read_sources(paths: Sequence[str]) -> list[SourceText]:
    """Read the files to migrate. Raises: InputError, UsageError."""
    if list(paths).count(STDIN) > 1:
        raise UsageError("stdin", "- (standard input) can be given once")
    origins = list(dict.fromkeys(origin for path in paths for origin in files_of(path)))
    return [SourceText(shown(origin), read_text(origin)) for origin in origins]


def write_sources(done: Sequence[Migrated]) -> None:
    """Write the files that changed. Raises: InputError("input.unwritable")."""
    for one in done:
        if one.new != one.old:
            try:
                _replace(Path(os.path.realpath(one.origin)), one.new)
            except OSError as fault:
                raise InputError("unwritable", f"{one.origin} can't be written: {fault.strerror}") from fault


def _replace(path: Path, text: str) -> None:
    """Write a new file beside the old one, then rename it over the old."""
    known = path.stat()
    with path.open("rb") as old:
        mark = _BOM if old.read(len(_BOM)) == _BOM else b""
    number, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(number, "wb") as file:
            file.write(mark + text.encode())
            file.flush()
            os.fsync(file.fileno())
        Path(beside).chmod(known.st_mode & 0o7777)
        with contextlib.suppress(PermissionError):
            os.chown(beside, known.st_uid, known.st_gid)
        Path(beside).replace(path)
    except BaseException:
        Path(beside).unlink(missing_ok=True)
        raise
