"""`dra-driver agent`: flags, signals, and the process that they start.

On a node without a matching PCI function and without claims in a ledger the process idles until the first GPU appears:
it imports neither gRPC nor the API client, registers nothing, and publishes nothing.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from dra_driver import __version__
from dra_driver.base.errors import DriverError, ExitCode, UsageError
from dra_driver.base.flags import FLAGS, add_to, resolve
from dra_driver.base.telemetry import logs
from dra_driver.base.telemetry.logs import StopRequest, fields
from dra_driver.node.daemon.options import Options, drivers_of

if TYPE_CHECKING:
    from dra_driver.node.daemon.node_process import NodeProcess

log = logging.getLogger(__name__)

NEW_OBJECTS = 10_000  # after which the garbage collector examines them; with Python's 700, in one of eight calls
_M_ARENA_MAX = -8  # from glibc's malloc.h

_EPILOG = """Each flag can also be set by an environment variable (upper case, underscores: NODE_NAME); the flag wins.
Signals: SIGTERM drains and ends; SIGUSR1 releases the vendor's library, so that the driver can be unloaded;
SIGUSR2 uses it again. Exit status: 0 ended, 2 usage, 3 bad input, 5 environment, 70 bug."""


def main(argv: Sequence[str]) -> int:
    """Run the agent until SIGTERM, and return the exit status."""
    is_json = _log_format(argv) == "json"
    if is_json:  # so that the program that reads the log can read an error about a wrong flag, too
        logs.set_up("json")
    try:
        values = _parse(argv)
        logs.set_up(values["log_format"], is_in_background=True)
        _run(drivers_of(values, is_named=_is_driver_named(argv)), is_json=is_json)
    except Exception as error:  # noqa: BLE001 - reported here
        return _report(error, is_json=is_json)


def _report(error: Exception, *, is_json: bool) -> int:
    """Log why the agent ends, and return the exit status."""
    if not isinstance(error, DriverError):
        log.error("bug: unexpected error", exc_info=error)
        return ExitCode.BUG
    if is_json:
        log.error("agent cannot continue", extra=fields(code=error.code, err=str(error)))
    else:
        print(f"dra-driver agent: {error} [{error.code}]", file=sys.stderr)
    return error.exit_code


class _AgentParser(argparse.ArgumentParser):
    """A parser that raises this program's errors, and that accepts no abbreviated flags."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        """Raise UsageError("usage.flags")."""
        raise UsageError("flags", message, hint="dra-driver agent --help lists the flags")


def _log_format(argv: Sequence[str]) -> str:
    """Return the log format, which is needed to report an error before the flags have been checked."""
    parser = _AgentParser(add_help=False)
    parser.add_argument("--log-format", default=os.environ.get("LOG_FORMAT", ""))
    try:
        return str(parser.parse_known_args(argv)[0].log_format)
    except UsageError:
        return ""


def _is_driver_named(argv: Sequence[str]) -> bool:
    """Return whether the driver's name was given, by the flag or its variable."""
    parser = _AgentParser(add_help=False)
    parser.add_argument("--driver-name", default=os.environ.get("DRIVER_NAME", ""))
    return bool(parser.parse_known_args(argv)[0].driver_name)


def _parse(argv: Sequence[str]) -> dict[str, str]:
    parser = _AgentParser(
        prog="dra-driver agent",
        description="The node daemon: publishes this node's GPUs and prepares claims for the kubelet.",
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"dra-driver {__version__}")
    add_to(parser, FLAGS)
    return resolve(vars(parser.parse_args(argv)), os.environ, FLAGS)


class Signals:
    """The operator's signals: the request to stop, for which the main thread waits, and the two about the library."""

    def __init__(self) -> None:
        self.stop = StopRequest()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        for number in (signal.SIGUSR1, signal.SIGUSR2):  # they must not end a process that is only starting
            signal.signal(number, lambda *_: None)

    @staticmethod
    def forward_to(process: NodeProcess) -> None:
        """Make SIGUSR1 release the library, and SIGUSR2 use it again, from now on."""
        signal.signal(signal.SIGUSR1, lambda *_: process.pause())
        signal.signal(signal.SIGUSR2, lambda *_: process.resume())

    def _stop(self, number: int, _frame: FrameType | None) -> None:
        log.info("stopping", extra=fields(signal=signal.Signals(number).name))
        self.stop.set()


def _run(drivers: Sequence[Options], *, is_json: bool) -> NoReturn:
    from dra_driver.node.daemon.node_process import NodeProcess

    signals = Signals()
    names = ",".join(options.driver for options in drivers)
    log.info("agent starting", extra=fields(node=drivers[0].node, driver=names, version=__version__, pid=os.getpid()))
    _share_heaps()
    _collect_seldom()
    process = NodeProcess(drivers)
    signals.forward_to(process)
    try:
        status = process.run(signals.stop)
    except Exception as error:  # noqa: BLE001 - reported here, because the process ends here
        status = _report(error, is_json=is_json)
        sys.stderr.flush()
    logs.finish()
    os._exit(status)  # a thread that hangs in a hardware call must not keep the process alive


def _collect_seldom() -> None:
    """Collect garbage once in some hundred calls, and never among what was imported: calls leave almost none."""
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS)


def _share_heaps() -> None:
    """Make all threads share two heaps. With a heap for each, glibc keeps more freed memory: 1 MiB of 57."""
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 2)
