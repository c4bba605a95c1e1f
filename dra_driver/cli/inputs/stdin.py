"""Whether something is piped into a command that was called without a file."""

from __future__ import annotations

import os
import select
import stat
import sys

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
