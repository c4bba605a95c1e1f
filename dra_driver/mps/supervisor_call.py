"""Send one request to a supervisor and read its answer, over a connection of its own.

In: the socket's path, a command. Out: the result, or the error that the supervisor reported.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dra_driver.model.errors import Retry, SharingError
from dra_driver.mps import wire

_HINT = "start `dra-driver mps` on the node; in the chart it is a separate DaemonSet, enabled when MPS is configured"
_SLACK_S = 1.0  # how much longer than its deadline the supervisor may take, because it undoes what it began
_MIN_S = 0.05
_RESTART_S = 5.0
_POLL_S = 0.1


def call_supervisor(path: Path, command: str, asked: Mapping[str, Any], deadline_s: float) -> dict[str, Any]:
    """Send a command to the supervisor at `path` and return its result. `deadline_s` is in seconds.

    Raises: SharingError: "sharing.mps-unavailable" (LATER) if no supervisor runs, "sharing.mps-not-ready" (LATER) if it
    does not answer in time, or the error that the supervisor reports.
    """
    deadline_s = max(_MIN_S, deadline_s)
    extra = {} if command == "list" else {"deadlineS": deadline_s}
    line = wire.line_of({"version": wire.VERSION, "command": command, **asked, **extra})
    try:
        answer = wire.object_of(_exchange_patiently(path, line, time.monotonic() + deadline_s))
    except TimeoutError as exc:
        text = f"the MPS supervisor did not answer {command!r} within {deadline_s:g} s"
        raise SharingError("mps-not-ready", text, retry=Retry.LATER) from exc
    except OSError as exc:
        text = f"no MPS supervisor answers at {path}: {exc.strerror or exc}"
        raise SharingError("mps-unavailable", text, hint=_HINT, retry=Retry.LATER) from exc
    if "error" in answer:
        raise wire.error_of(answer["error"])
    result = answer.get("result")
    return result if isinstance(result, dict) else {}


def _exchange_patiently(path: Path, line: bytes, deadline: float) -> bytes:
    """Send a line and return the answer. If the supervisor's folder exists, wait for a supervisor that is restarting.

    Every command may be repeated, so a command that was interrupted is sent again.
    """
    gives_up = min(deadline, time.monotonic() + _RESTART_S)
    while True:
        try:
            return _exchange(path, line, deadline + _SLACK_S)
        except TimeoutError:
            raise
        except OSError:
            if time.monotonic() + _POLL_S > gives_up or not path.parent.is_dir():
                raise
        time.sleep(_POLL_S)


def _exchange(path: Path, line: bytes, deadline: float) -> bytes:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:

        def wait() -> None:
            connection.settimeout(max(_MIN_S, deadline - time.monotonic()))

        wait()
        connection.connect(os.fspath(path))
        connection.sendall(line)
        answer = b""
        while not answer.endswith(b"\n"):
            wait()
            part = connection.recv(65536)
            if not part:
                raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
            answer += part
        return answer
