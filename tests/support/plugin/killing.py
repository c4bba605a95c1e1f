"""Kills a call at chosen crash points, and checks what the next agent makes of what is left.

A kill leaves nothing of a process but its files, and the restarted agent reads nothing else. So two kills between which
no file changed are the same kill: it is enough to kill once after each change (`CHANGES`), and every line that a call
runs through can be tried as well. Programs use this, not tests: it forks, which a process with gRPC's threads must not.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import dra_driver
import dra_driver.hardware.nvidia.vendor
import dra_driver.node.claims.config_schema  # imported on first use, like the next one: each child would do it again
from tests.support.plugin.tree_changes import TreeChanges
from tests.support.waiting import until

KILLED_IN = (
    "node/prepare/",
    "node/kubelet/",
    "node/ledger/",
    "node/neighbours/",
    "node/cdi.py",
    "hardware/driver_binding.py",
    "hardware/vfio.py",
    "hardware/simulated/state_file.py",
    "hardware/simulated/kernel.py",
)
PACKAGE = str(Path(dra_driver.__file__).parent)
ROOMS = tuple(f"{PACKAGE}/{room}" for room in KILLED_IN)
assert all(map(os.path.exists, ROOMS)), "a room of which no line would be tried"
CHANGES = 0  # a stride: kill after each change of a file, instead of at each so many lines
MEMORY = Path("/dev/shm")  # a kill is no power failure: syncs may cost nothing here
Trace = Callable[[FrameType, str, Any], Any]
Check = Callable[[Path, str], None]  # works in a folder, for the call of this name
Calling = Callable[[Path, str, Trace], None]  # makes the call of this name in a folder, traced


class CrashPoint(NamedTuple):
    """A line of the driver, about to run for the n-th time (1: the first)."""

    file: str
    line: int
    nth: int


def in_child(work: Callable[[], Any], killed_after_s: float | None = None) -> tuple[int, str]:
    """Run `work` in a fork, and kill it after that time, if one is given. Return the wait status, and its error."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        try:
            work()
        except BaseException as error:
            os.write(write, f"{type(error).__name__}: {error}"[:4000].encode())
        os._exit(0)
    os.close(write)
    if killed_after_s is not None:
        time.sleep(killed_after_s)
        os.kill(pid, signal.SIGKILL)
    with os.fdopen(read) as pipe:
        error = pipe.read()
    return os.waitpid(pid, 0)[1], error


def traced_call(rig: Any, uid: str, trace: Trace, *, is_unprepare: bool) -> None:
    """Prepare or unprepare the claim, and trace nothing but that call."""
    sys.settrace(trace)
    if is_unprepare:
        rig.unprepare(uid)
    else:
        rig.prepare(uid)
    sys.settrace(None)


def _trace_nothing(_frame: FrameType, _event: str, _argument: Any) -> None:
    return None


def _before_lines(act: Callable[[CrashPoint], None]) -> Trace:
    """Return a trace function that acts before every line of our rooms."""
    counts: Counter[tuple[str, int]] = Counter()

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        file = frame.f_code.co_filename
        if not file.startswith(ROOMS):
            return None
        if event == "line":
            counts[file, frame.f_lineno] += 1
            act(CrashPoint(file, frame.f_lineno, counts[file, frame.f_lineno]))
        return trace

    return trace


def killing_at(crash_point: CrashPoint) -> Trace:
    """Return a trace function that kills this process at a crash point."""

    def act(here: CrashPoint) -> None:
        if here == crash_point:
            os.kill(os.getpid(), signal.SIGKILL)

    return _before_lines(act)


def _note_crash_points(root: Path, stride: int, call: Callable[[Trace], None], notes: Path) -> None:
    """Run a call through and write down its crash points."""
    changes, crash_points, lines = TreeChanges(root), list[CrashPoint](), 0

    def act(here: CrashPoint) -> None:
        nonlocal lines
        if changes.are_new() if stride == CHANGES else lines % stride == 0:
            crash_points.append(here)
        lines += 1

    call(_before_lines(act))
    notes.write_text(json.dumps(crash_points))


class Killer:
    """Kills one call, again and again, in a folder that looks as it did before the call.

    Each of the `checks` is a next agent: it finds what a kill has left, and raises an AssertionError if that is wrong.
    """

    def __init__(self, what: str, checks: Sequence[Check], calling: Calling) -> None:
        self._what, self._checks, self._calling = what, checks, calling
        self._wrong: list[str] = []

    def run(self, preparing: Check, stride: int) -> tuple[int, list[str]]:
        """Kill the call after each change, or at every `stride`-th line. Return the kills and what was wrong."""
        with tempfile.TemporaryDirectory(prefix="kill-", dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as folder:
            self._root, prepared, notes = (
                Path(folder, "node"),
                Path(folder, "prepared"),
                Path(folder, "crash_points.json"),
            )
            self._warm_up(preparing, Path(folder, "warm"))
            self._root.mkdir()
            if self._note("before it", in_child(partial(preparing, self._root, self._what))[1]):
                return 0, self._wrong
            self._root.rename(prepared)
            self._put(prepared)
            call = partial(self._calling, self._root, self._what)
            if self._note("without a kill", in_child(partial(_note_crash_points, self._root, stride, call, notes))[1]):
                return 0, self._wrong
            crash_points = [CrashPoint(*one) for one in json.loads(notes.read_text())]
            for crash_point in crash_points:
                self._put(prepared)
                self._kill(crash_point, call, Path(folder, "left"))
            return len(crash_points), self._wrong

    def _warm_up(self, preparing: Check, folder: Path) -> None:
        """Do here, without a kill, what the children will do. They inherit what is imported and compiled on first use.

        They don't inherit a lock of another thread: each has ended before a child is forked.
        """
        for check in self._checks:
            folder.mkdir()
            preparing(folder, self._what)
            self._calling(folder, self._what, _trace_nothing)
            check(folder, self._what)
            until(lambda: threading.active_count() == 1)
            shutil.rmtree(folder)

    def _kill(self, crash_point: CrashPoint, call: Callable[[Trace], None], left: Path) -> None:
        status, fault = in_child(partial(call, killing_at(crash_point)))
        self._note(f"killed at {crash_point}", fault or ("" if os.WIFSIGNALED(status) else "the call did not reach it"))
        self._root.rename(left)
        *others, last = self._checks
        for check in (*others, last):
            if check is last:
                shutil.rmtree(self._root, ignore_errors=True)
                left.rename(self._root)
            else:
                self._put(left)
            self._note(
                f"killed at {crash_point}, {check.__name__}", in_child(partial(check, self._root, self._what))[1]
            )
            print(".", end="", file=sys.stderr, flush=True)

    def _put(self, folder: Path) -> None:
        shutil.rmtree(self._root, ignore_errors=True)
        shutil.copytree(folder, self._root, symlinks=True)

    def _note(self, when: str, fault: str) -> str:
        self._wrong += [f"{self._what} {when}: {fault}"] if fault else []
        return fault


def print_report(calls: Sequence[str], checks: Sequence[Check], preparing: Check, calling: Calling) -> None:
    """Kill each call that the command line names, or all. Print the kills by call and what was wrong, as JSON."""
    gc.disable()  # children are short-lived, and need no copies of pages that a collector only looks at
    stride = int(sys.argv[1]) if len(sys.argv) > 1 else CHANGES
    results = {what: Killer(what, checks, calling).run(preparing, stride) for what in sys.argv[2:] or calls}
    kills = {what: count for what, (count, _) in results.items()}
    print(json.dumps({"kills": kills, "wrong": [text for _, wrong in results.values() for text in wrong]}))


def expect(found: Any, wanted: Any) -> None:
    if found != wanted:
        raise AssertionError(f"found {found}, wanted {wanted}")
