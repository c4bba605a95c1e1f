"""What a command is given besides its options: standard input, an address; and the progress that it shows."""

from __future__ import annotations

import os
import select
import stat
import sys
import time

from dra_driver.base.errors import UsageError

# The progress of a long command, as a line on standard error.

_FIRST_SECONDS, _SECONDS = 0.5, 0.2
_CLEAR = "\r\x1b[K"


class TerminalProgress:
    """The progress line of one long task."""

    def __init__(self, noun: str, total: int = 0) -> None:
        self._noun = noun
        self._total = total
        self._is_seen = sys.stderr is not None and sys.stderr.isatty()
        self._began = time.monotonic()
        self._next = self._began + _FIRST_SECONDS
        self._is_drawn = False

    def update(self, done: int) -> None:
        """Draw how many items are done, unless that was drawn a moment ago."""
        if not self._is_seen or (now := time.monotonic()) < self._next:
            return
        self._next = now + _SECONDS
        self._is_drawn = True
        of = f" of {self._total:,}" if self._total else ""
        print(f"{_CLEAR}{done:,}{of} {self._noun}, {done / (now - self._began):,.0f}/s", end="", file=sys.stderr)
        sys.stderr.flush()

    def close(self) -> None:
        """Remove the line."""
        if self._is_drawn:
            print(_CLEAR, end="", file=sys.stderr)
            sys.stderr.flush()


# Whether something is piped into a command that was called without a file.

SILENT_SECONDS = 5.0


def stdin_has_something() -> bool:
    """Return whether something is piped into this process; a pipe that stays silent for five seconds does not count."""
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
    text = f"dra-driver: nothing came on standard input for {SILENT_SECONDS:.0f} s; use - to wait for it"
    print(text, file=sys.stderr)
    return False


# The address on which a server of a command listens.


def read_address(text: str, example: str) -> tuple[str, int]:
    """Read HOST:PORT; the host is "" for all addresses. Raises: UsageError("usage.address"), which shows `example`."""
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise UsageError("address", f"--address={text!r} is not HOST:PORT", hint=f"for example {example}")
    return host.strip("[]"), int(port)
