"""Tokens: what goes into the Authorization header, read again when it may have been renewed.

A ServiceAccount token on disk is replaced by the kubelet well before it ends; a copy older than a minute is read again,
and once at once when the server answers 401. A token never appears in a log, a message or a repr.
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
    """Where the Authorization header comes from. Both methods may be called from any thread."""

    def authorization(self) -> str:
        """Return the header's value, "" for none."""

    def reread(self) -> bool:
        """Get the token anew, at once. Says whether asking the server again can help."""


class StaticToken:
    """A token that stands in the kubeconfig itself, or none at all."""

    def __init__(self, token: str = "") -> None:
        self._header = bearer(token)

    def authorization(self) -> str:
        """Return the header's value, "" for none."""
        return self._header

    def reread(self) -> bool:
        """Say that there is nothing to read again."""
        return False


class TokenFile:
    """A token in a file that somebody renews. `fallback` serves while the file can't be read."""

    def __init__(self, path: str, *, fallback: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = Path(path), clock
        self._lock = threading.Lock()
        self._header = bearer(fallback)
        self._read_at = float("-inf")

    def authorization(self) -> str:
        """Return the header's value; reads the file when the copy is older than a minute."""
        with self._lock:
            if self._clock() - self._read_at >= REREAD_SECONDS:
                self._read()
            return self._header

    def reread(self) -> bool:
        """Read the file now. Says whether it holds another token than the one that was refused."""
        with self._lock:
            refused = self._header
            self._read()
            return self._header != refused

    def _read(self) -> None:
        self._read_at = self._clock()
        try:
            self._header = bearer(self._path.read_text()) or self._header
        except OSError as err:  # the last token may still be good: the server decides
            log.warning("token file unreadable", extra=fields(file=str(self._path), err=err.strerror))


def bearer(token: str) -> str:
    """Return the header's value for a token, "" for an empty one."""
    token = token.strip()
    return f"Bearer {token}" if token else ""
