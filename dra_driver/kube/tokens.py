"""The tokens for the Authorization header, read again when they may have been renewed.

The kubelet replaces a ServiceAccount token on disk well before it expires. A copy older than a minute is read again,
and once immediately if the server answers 401. A token never appears in a log, a message or a repr.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

REREAD_SECONDS = 60.0


class TokenSource(Protocol):
    """The source of the Authorization header. Both methods may be called from any thread."""

    def authorization(self) -> str:
        """Return the value of the header; "" for none."""

    def reread(self) -> bool:
        """Get a new token at once; return whether asking the server again can help."""


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
            self._header = bearer(self._path.read_text()) or self._header
        except OSError as err:  # the last token may still be valid, and the server decides that
            log.warning("token file unreadable", extra=fields(file=str(self._path), err=err.strerror))


def bearer(token: str) -> str:
    """Return the value of the header for a token; "" for an empty one."""
    token = token.strip()
    return f"Bearer {token}" if token else ""
