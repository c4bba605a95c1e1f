"""The process of one test: it is started, its output is read, and it is ended in time.

In: what to run, a deadline. Out: its messages and how it ended. A process that can't be ended, because the kernel waits
for the device, is left running, so that the agent does not wait for it forever.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dra_driver.validation.memory_cgroup import MemoryCgroup

OUTPUT_BYTES = 64 * 1024
END_SECONDS = 2.0  # how long a process may take to end once it was killed
_LAUNCH = str(Path(__file__).with_name("launch.py"))
_left_behind: list[subprocess.Popen[bytes]] = []


@dataclass(frozen=True, slots=True)
class ChildOrder:
    """What to run: a module with its request, or a command. `memory` is in bytes; `deadline_s` counts from the start.

    `environment` is complete. `inherited` are file descriptors that the process keeps open.
    """

    deadline_s: float
    memory: int
    environment: Mapping[str, str]
    module: str = ""
    request: Mapping[str, Any] = field(default_factory=dict)
    argv: Sequence[str] = ()
    inherited: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class ChildEnd:
    """How the process ended. `status` is negative for a signal, and None for a process that did not end.

    `verdict` is the verdict that it printed, if any; `step` is the last step that it began; `output` is the end of
    everything else that it printed.
    """

    status: int | None
    seconds: float
    verdict: Mapping[str, Any] | None = None
    step: str = ""
    output: str = ""
    is_late: bool = False
    is_out_of_memory: bool = False


class TestChild:
    """The process of one test. Not thread-safe, except for `kill`."""

    __test__ = False

    def __init__(self, order: ChildOrder, cgroup: MemoryCgroup | None) -> None:
        self._order, self._cgroup = order, cgroup
        self._began = time.monotonic()
        self._step, self._rest = "", b""
        self._verdict: Mapping[str, Any] | None = None
        self._output: list[str] = []
        self._process = self._started()

    @property
    def pid(self) -> int:
        """Return the process's id, which is also its group's."""
        return self._process.pid

    def kill(self) -> None:
        """End the process and its group."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def wait(self, on_step: Callable[[str], None]) -> ChildEnd:
        """Read the output until the process ends or its deadline is over; call `on_step` with each step."""
        try:
            is_late = not self._listen(self._began + self._order.deadline_s, on_step)
        finally:
            self.kill()  # this also ends the processes that it has started
            status = self._reaped()
            seconds = time.monotonic() - self._began
        is_exhausted = self._cgroup is not None and self._cgroup.was_exhausted
        output = "\n".join(self._output)[-1000:]
        return ChildEnd(status, seconds, self._verdict, self._step, output, is_late, is_exhausted)

    def _started(self) -> subprocess.Popen[bytes]:
        order = self._order
        spec = {
            "parent": os.getpid(),
            "cgroup": str(self._cgroup.path) if self._cgroup else "",
            "memory": order.memory,
            "deadline": order.deadline_s + END_SECONDS,
            "module": order.module,
            "request": dict(order.request),
            "argv": list(order.argv),
        }
        _reap_left_behind()
        return subprocess.Popen(
            [sys.executable, "-I", "-S", _LAUNCH, json.dumps(spec)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(order.environment),
            cwd="/",
            pass_fds=tuple(order.inherited),
            process_group=0,
        )

    def _listen(self, until: float, on_step: Callable[[str], None]) -> bool:
        """Read the output of the process; return whether it ended in time."""
        assert self._process.stdout is not None  # noqa: S101 - a pipe
        output, life = self._process.stdout.fileno(), os.pidfd_open(self._process.pid)
        poll = select.poll()
        poll.register(output, select.POLLIN)
        poll.register(life, select.POLLIN)
        read = 0
        try:
            while (left := until - time.monotonic()) > 0:
                ready = {fd for fd, _ in poll.poll(left * 1000)}
                if output in ready:
                    part = os.read(output, 4096)
                    read += len(part)
                    if part and read <= OUTPUT_BYTES:
                        self._add_output(part, on_step)
                    elif not part:
                        poll.unregister(output)
                elif life in ready:
                    return True
            return False
        finally:
            os.close(life)

    def _add_output(self, part: bytes, on_step: Callable[[str], None]) -> None:
        *lines, self._rest = (self._rest + part).split(b"\n")
        for line in lines:
            text = line.decode(errors="replace")
            message = _object(text)
            if "verdict" in message:
                self._verdict = message
            elif isinstance(message.get("step"), str):
                self._step = message["step"]
                on_step(self._step)
            elif text.strip():
                self._output.append(text)

    def _reaped(self) -> int | None:
        process = self._process
        if process.stdout is not None:
            process.stdout.close()
        try:
            return process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            _left_behind.append(process)
            return None


def _object(text: str) -> Mapping[str, Any]:
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return message if isinstance(message, dict) else {}


def _reap_left_behind() -> None:
    _left_behind[:] = [one for one in _left_behind if one.poll() is None]
