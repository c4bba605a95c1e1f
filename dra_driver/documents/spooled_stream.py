"""A stream that can be read only once, such as standard input, kept so that it can be read again.

In: the stream. Out: an open file with the same bytes: in memory if they are few, otherwise a temporary file without a
name, which disappears when it is closed.
"""

from __future__ import annotations

import io
import tempfile
from contextlib import suppress
from typing import BinaryIO

MAX_MEMORY = 8 << 20  # bytes


def spooled_stream(stream: BinaryIO, maximum: int) -> BinaryIO:
    """Return an open file with the content of a stream, at most `maximum` bytes of it. Raises: OSError.

    If no temporary file can be made, everything is kept in memory.
    """
    kept: BinaryIO = io.BytesIO()
    size = 0
    while chunk := stream.read(min(MAX_MEMORY, maximum - size)):
        if not size and len(chunk) == MAX_MEMORY:
            with suppress(OSError):
                kept = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
        kept.write(chunk)
        size += len(chunk)
    kept.seek(0)
    return kept
