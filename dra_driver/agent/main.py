"""`dra-driver agent`: flags, signals, and the decision whether this node needs an agent at all.

On a node without a matching PCI function and without claims in the ledger the process idles until the first GPU
appears: it imports neither gRPC nor the API client, registers nothing, and publishes nothing.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from dra_driver import __version__
from dra_driver.agent.lean import lean_imports
from dra_driver.agent.options import Options, options_of
from dra_driver.hardware.choose import choose
from dra_driver.hardware.port import Hardware
from dra_driver.model.errors import DriverError, ExitCode, UsageError
from dra_driver.model.flags import add_to, resolve
from dra_driver.telemetry import logs
from dra_driver.telemetry.logs import fields
from dra_driver.telemetry.stop_request import StopRequest

if TYPE_CHECKING:
    from dra_driver.agent.node import NodeAgent
    from dra_driver.agent.status.page import StatusPage
    from dra_driver.kube.api import KubeApi

log = logging.getLogger(__name__)

IDLE_SECONDS = 2.0
_M_ARENA_MAX = -8  # from glibc's malloc.h

_EPILOG = """Each flag has an environment twin (upper case, underscores: NODE_NAME); the flag wins.
Signals: SIGTERM drains and ends; SIGUSR1 lets go of the vendor's library, so that the driver can be unloaded;
SIGUSR2 takes it up again. Exit status: 0 ended, 2 usage, 3 bad input, 5 environment, 70 bug."""


def main(argv: Sequence[str]) -> int:
    """Run the agent until SIGTERM, and return the exit status."""
    is_json = _log_format(argv) == "json"
    if is_json:  # the program that reads the log has to be able to read an error about a wrong flag too
        logs.set_up("json")
    try:
        values = _parse(argv)
        logs.set_up(values["log_format"])
        options = options_of(values)
        hardware = choose(options.hardware, options.roots, node_name=options.node, state_dir=options.data_dir)
        return _run(options, hardware)
    except DriverError as error:
        if is_json:
            log.error("agent cannot continue", extra=fields(code=error.code, err=str(error)))  # noqa: TRY400
        else:
            print(f"dra-driver agent: {error} [{error.code}]", file=sys.stderr)
        return error.exit_code
    except Exception:
        log.exception("bug: unexpected error")
        return ExitCode.BUG


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


def _parse(argv: Sequence[str]) -> dict[str, str]:
    parser = _AgentParser(
        prog="dra-driver agent",
        description="The node daemon: publishes this node's GPUs and prepares claims for the kubelet.",
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"dra-driver {__version__}")
    add_to(parser)
    return resolve(vars(parser.parse_args(argv)), os.environ)


class Signals:
    """The operator's signals: the request to stop, which the main thread waits for, and the two about the library."""

    def __init__(self) -> None:
        self.stop = StopRequest()
        self.end_at_once = False  # true as long as nothing has begun that would have to be ended in order
        self._on_let_go: Callable[[], None] = lambda: None
        self._on_resume: Callable[[], None] = lambda: None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        signal.signal(signal.SIGUSR1, lambda *_: self._on_let_go())
        signal.signal(signal.SIGUSR2, lambda *_: self._on_resume())

    def on_library(self, *, let_go: Callable[[], None], resume: Callable[[], None]) -> None:
        """Set what SIGUSR1 and SIGUSR2 do from now on."""
        self._on_let_go, self._on_resume = let_go, resume

    def _stop(self, number: int, _frame: FrameType | None) -> None:
        log.info("stopping", extra=fields(signal=signal.Signals(number).name))
        self.stop.set()
        if self.end_at_once:
            os._exit(ExitCode.OK)


def _run(options: Options, hardware: Hardware) -> int:
    signals = Signals()
    log.info(
        "agent starting", extra=fields(node=options.node, driver=options.driver, version=__version__, pid=os.getpid())
    )
    if not _await_work(options, hardware, signals):
        return ExitCode.OK
    agent = _opened(options, hardware, signals)
    if agent is None:
        return ExitCode.OK
    signals.on_library(let_go=agent.let_go, resume=agent.resume)
    try:
        agent.start()
    except DriverError:
        agent.stop()
        raise
    must_restart = agent.wait(signals.stop)
    agent.stop()
    if must_restart and not signals.stop.is_set():
        log.info("restarting the process")
        logging.shutdown()
        os.execv(sys.executable, [sys.executable, "-m", "dra_driver", *sys.argv[1:]])
    sys.stderr.flush()
    os._exit(ExitCode.OK)  # a thread that hangs in a hardware call must not keep the process alive


def _opened(options: Options, hardware: Hardware, signals: Signals) -> NodeAgent | None:
    """Import and open the agent; return None when asked to stop before that. Raises: DriverError."""
    with lean_imports():
        import grpc._server  # noqa: F401 - else imported when the first server is made

        from dra_driver.agent.node import NodeAgent

        if options.status.is_served:
            import dra_driver.telemetry.metrics  # noqa: F401

    _share_heaps()
    signals.end_at_once = True  # a named pipe among the operator's files would make the agent wait for ever
    if signals.stop.is_set():
        return None
    agent = NodeAgent(options, hardware)
    signals.end_at_once = False
    return agent


def _share_heaps() -> None:
    """Make threads share two heaps: glibc gives each thread its own, which keeps the freed memory (1 of 57 MiB)."""
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 2)


def _await_work(options: Options, hardware: Hardware, signals: Signals) -> bool:
    """Wait until there is a GPU, or a claim to be undone. Return False when asked to stop before that."""
    if hardware.is_present() or _has_claims(options.data_dir):
        return True
    page = _idle_page(options, hardware)
    log.info("no GPU on this node and no claims: idle until one appears", extra=fields(node=options.node))
    try:
        while not signals.stop.wait(IDLE_SECONDS):
            if hardware.is_present() or _has_claims(options.data_dir):
                return True
    finally:
        if page:
            page.stop()
    return False


def _idle_page(options: Options, hardware: Hardware) -> StatusPage | None:
    """Begin to answer probes while idle, because a kubelet keeps restarting an agent that does not answer.

    Raises: DriverError.
    """
    if not options.status.is_served:
        return None
    with lean_imports():
        from dra_driver.agent.status.page import StatusPage
        from dra_driver.telemetry.metrics import Metrics, Snapshot

    def open_api() -> KubeApi:
        from dra_driver.kube import api, credentials

        return api.KubeApi(credentials.load(options.kubeconfig))

    idle = Snapshot(version=__version__, vendor=hardware.vendor)
    page = StatusPage(options.status, metrics=Metrics(lambda: idle).render, readiness=tuple, api=open_api)
    page.start()
    return page


def _has_claims(data_dir: Path) -> bool:
    """Return whether the ledger may hold claims, without opening a ledger that does not exist."""
    if not (data_dir / "ledger.db").exists():
        return False
    from dra_driver.plugin.ledger.connections import has_claims

    return has_claims(data_dir / "ledger.db")
