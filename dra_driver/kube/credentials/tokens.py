"""The tokens for the Authorization header, read again when they may have been renewed.

The kubelet replaces a ServiceAccount token on disk well before it expires. The file is read again when our copy is
older than a minute, and at once when the server answers 401. A token never appears in a log, a message or a repr.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

REREAD_SECONDS = 60.0
_MAX_TOKEN = 1 << 20  # bytes; real tokens have a few thousand


class TokenSource(Protocol):
    """The source of the Authorization header. Both methods may be called from any thread."""

    def authorization(self) -> str:
        """Return the value of the header; "" for none."""

    def reread(self) -> bool:
        """Get a new token at once; return whether it can help to send the request again."""


class StaticToken:
    """A token written in the kubeconfig itself, or none at all."""

    def __init__(self, token: str = "") -> None:
        self._header = bearer(token)

    def authorization(self) -> str:
        """Return the value of the header; "" for none."""
        return self._header

    def reread(self) -> bool:
        """Return False: there is nothing to read again."""
        return False


class TokenFile:
    """A token in a file that another process renews. `fallback` is used while the file can't be read."""

    def __init__(self, path: str, *, fallback: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = Path(path), clock
        self._lock = threading.Lock()
        self._header = bearer(fallback)
        self._read_at = float("-inf")

    def authorization(self) -> str:
        """Return the value of the header; read the file if the copy is older than a minute."""
        with self._lock:
            if self._clock() - self._read_at >= REREAD_SECONDS:
                self._read()
            return self._header

    def reread(self) -> bool:
        """Read the file now; return whether it holds a token other than the refused one."""
        with self._lock:
            refused = self._header
            self._read()
            return self._header != refused

    def _read(self) -> None:
        self._read_at = self._clock()
        try:
            self._header = bearer(_text_of(self._path)) or self._header
        except (OSError, ValueError) as err:  # keep the last token: it may still be valid, which the server decides
            why = err.strerror if isinstance(err, OSError) else str(err)
            log.warning("token file unreadable", extra=fields(file=str(self._path), err=why))


def _text_of(path: Path) -> str:
    """Return the token in a file, without waiting for a FIFO. Raises: OSError, ValueError if it holds no token."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # noqa: PTH123 - a descriptor
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("not a regular file")
        content = file.read(_MAX_TOKEN + 1).strip()
    if len(content) > _MAX_TOKEN or not all(0x21 <= byte <= 0x7E for byte in content):
        raise ValueError("not a token: it is too long, or has spaces or other characters that no header may have")
    return content.decode("ascii")


def bearer(token: str) -> str:
    """Return the value of the header for a token; "" for an empty one."""
    token = token.strip()
    return f"Bearer {token}" if token else ""
