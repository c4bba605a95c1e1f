"""Ports for servers that have to be told one, or that come back at the one they had."""

from __future__ import annotations

import itertools
import os
import socket
from contextlib import suppress

FIRST, COUNT = 10_000, 20_000
_turns = itertools.count(os.getpid() * 100)


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that nobody has.

    It is below those that the kernel gives to whoever asks for any (32768 and up by default): one of those may be
    taken by another test between the look and the use.
    """
    for _ in range(COUNT):
        port = FIRST + next(_turns) % COUNT
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError(f"no port from {FIRST} to {FIRST + COUNT - 1} is free")
