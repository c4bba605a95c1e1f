"""Run one command, and turn errors into exit statuses; no other module does that.

In: argv. Out: an exit status of `ExitCode`. A user's error is one line and a hint; only a bug shows a traceback.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import click

from dra_driver import __version__
from dra_driver.base.errors import DriverError, ExitCode, InputError
from dra_driver.tools.commands import cli

_MAX_SHOWN = 300  # in characters of a path
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
INTERRUPTED = 130  # 128 + SIGINT, as shells expect


def run(argv: Sequence[str], program: str = "dra-driver") -> int:
    """Run one command and return its exit status. `program` is the name of the program in usage texts."""
    if argv[:1] == ["__complete"]:  # a shell's completion script asks
        from dra_driver.tools.completion_command import complete

        return complete(argv[1:])
    _open_closed_streams()
    logging.getLogger("dra_driver").addHandler(logging.NullHandler())  # commands print their own messages
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # characters that the terminal can't show become question marks
    try:
        status = cli.main(args=list(argv), prog_name=program, standalone_mode=False)
    except Exception as fault:  # noqa: BLE001
        return _status_of(fault)
    except KeyboardInterrupt:
        return _status_of(click.Abort())
    except SystemExit as ended:
        if ended.code != 1:  # what click does if a pipe is closed, but 1 stands for findings
            raise
        return _status_of(BrokenPipeError())
    return status if isinstance(status, int) else ExitCode.OK


def _open_closed_streams() -> None:
    """Open /dev/null in place of a standard stream that the shell has closed, so that no other file gets its number."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: SIM115


def _status_of(fault: Exception) -> int:
    """Print an error of a command, and return the exit status for it."""
    match fault:
        case click.ClickException():  # among them the help of a group that was called without a command
            fault.show()
            return ExitCode.USAGE
        case click.Abort():
            print("interrupted", file=sys.stderr)
            return INTERRUPTED
        case DriverError():
            _print_error(fault)
            return fault.exit_code
        case BrokenPipeError():
            _silence_stdout()
            return ExitCode.OK
        case OSError() if fault.errno in _NO_ROOM and not fault.filename:
            _silence_stdout()
            _print_error(InputError("unwritable", f"the output can't be written: {fault.strerror}"))
            return ExitCode.BAD_INPUT
        case OSError():  # a name that is too long, a loop of links: not a bug
            named = f": {str(fault.filename)[:_MAX_SHOWN]}" if fault.filename else ""
            _print_error(InputError("unreadable", f"{fault.strerror or fault}{named}"))
            return ExitCode.BAD_INPUT
        case RecursionError():
            _print_error(InputError("not-yaml", "an input is nested too deeply"))
            return ExitCode.BAD_INPUT
    _report_bug(fault)
    return ExitCode.BUG


def _print_error(fault: DriverError) -> None:
    from dra_driver.tools.output import printable

    print(printable(f"dra-driver: {fault.message} [{fault.code}]"), file=sys.stderr)
    if fault.hint:
        print(printable(f"  {fault.hint}"), file=sys.stderr)


def _report_bug(fault: Exception) -> None:
    traceback.print_exception(fault)
    print(
        f"dra-driver {__version__}: this is a bug, not something that you did. Please report the lines above,"
        " with the command, in the project's issue tracker.",
        file=sys.stderr,
    )


def _silence_stdout() -> None:
    """Keep the interpreter from reporting a broken pipe on standard output when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> NoReturn:
    """Run the command line as a program."""
    sys.exit(run(sys.argv[1:]))
