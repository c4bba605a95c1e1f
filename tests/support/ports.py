"""Ports for servers that need a given port, or that come back at the port they had."""

from __future__ import annotations

import itertools
import os
import socket
from contextlib import suppress

FIRST, COUNT = 10_000, 20_000
_turns = itertools.count(os.getpid() * 100)


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that is free.

    It is below the ports that the kernel assigns on its own (32768 and up by default): one of those may be taken by
    another test between the check and the use.
    """
    for _ in range(COUNT):
        port = FIRST + next(_turns) % COUNT
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError(f"no port from {FIRST} to {FIRST + COUNT - 1} is free")
