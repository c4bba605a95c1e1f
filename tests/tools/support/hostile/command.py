"""One command, run in this process with a time limit."""

from __future__ import annotations

import contextlib
import io
import signal
import sys
import traceback
from typing import Any

from dra_driver.base.errors import ExitCode
from dra_driver.tools import main

SECONDS = 20  # CPU time of this process, so that other work on the machine does not look like a bug
WAIT_SECONDS = 300


class TooSlowError(Exception):
    """A command did not end."""


def _time_out(*_: Any) -> None:
    raise TooSlowError


def ran(arguments: list[str], stdin: bytes = b"") -> tuple[int, str]:
    """Run a command in this process; return its status and its output, for a bug with the traceback."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.TextIOWrapper(io.BytesIO(), "utf-8")
    before = sys.stdin
    for number in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(number, _time_out)
    signal.alarm(WAIT_SECONDS)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        sys.stdin = io.TextIOWrapper(io.BytesIO(stdin), "utf-8")
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main.run(arguments)
    except BaseException:  # tracebacks are what the cases look for
        status = ExitCode.BUG
        print(traceback.format_exc(), file=err)
    finally:
        signal.alarm(0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdin = before
    err.flush()
    return status, err.buffer.getvalue().decode("utf-8", "replace")
