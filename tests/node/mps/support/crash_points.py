"""Starts and stops a daemon in child processes that kill themselves at every line of our code, then checks.

    python -m tests.node.mps.support.crash_points STRIDE[:FIRST] [CALL ...]      stride 1 kills at every line

A program of its own (test_kill starts it), because it forks. For each line that a call runs through, one child is
SIGKILLed there; the next child is the restarted supervisor, which takes over what is left. In calls named "… of the
daemon" the control daemon is killed instead, and the supervisor runs on. Prints one JSON object: the number of kills by
call, and what was found wrong.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import dra_driver
from dra_driver.base.errors import DriverError
from tests.support.mps.fake_mps import FakeClient
from tests.support.mps.parts import SETTINGS, Rig, device, processes_below, short_folder
from tests.support.plugin.killing import in_child
from tests.support.waiting import until

ROOM = Path(dra_driver.__file__).parent / "node" / "mps"
FILES = tuple(
    str(ROOM / f"{name}.py") for name in ("control_client", "daemon", "daemon_folder", "launch", "supervision")
)
assert all(map(os.path.exists, FILES)), "a file that doesn't exist: no line of it would be tried"
PURE = "key_of"  # it runs many lines without an effect
CALLS = ("start", "stop", "change", "start of the daemon", "change of the daemon")
CHANGED = replace(SETTINGS, active_thread_percentage=70)
MEMORY = Path("/dev/shm")


def at_line(line: int, act: Callable[[], None]) -> Callable[[FrameType, str, Any], Any]:
    """Return a tracer of this room's code that calls `act` before the given line of this thread (0: the first)."""
    left = line

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in FILES or frame.f_code.co_name == PURE:
            return None
        if event == "line":
            if left == 0:
                act()
            left -= 1
        return trace

    return trace


def call(folder: Path, what: str, line: int) -> None:
    rig = Rig(folder, delays_s=(0.0,))
    if what not in {"start", "start of the daemon"}:
        rig.start()

    def kill_daemon() -> None:
        (folder / "hit").touch()
        for pid in processes_below(rig.root)[:1]:
            os.kill(pid, signal.SIGKILL)

    of_daemon = what.endswith("of the daemon")
    sys.settrace(at_line(line, kill_daemon if of_daemon else lambda: os.kill(os.getpid(), signal.SIGKILL)))
    try:
        if what == "stop":
            rig.stop()
        else:
            rig.start(settings=CHANGED if what.startswith("change") else SETTINGS, seconds=5)
    except DriverError:
        if not of_daemon:
            raise  # a daemon may be killed where only the next call can start another one
    finally:
        sys.settrace(None)
    if of_daemon:
        check_after(folder, what)


def check_after(folder: Path, _what: str) -> None:
    """Check the next supervisor: it takes over what is left, and an agent can start and stop the daemon again."""
    rig = Rig(folder, delays_s=(0.0,))
    rig.supervisor.begin()
    at = rig.start(settings=CHANGED, seconds=10)
    # The supervisor asks its daemons from time to time, by a command that is below the folder while it runs.
    until(lambda: processes_below(rig.root) == [rig.pid()])
    client = FakeClient(at.pipe)
    expect((client.percentage, client.works()), (70.0, True))
    client.end()
    expect([path.name for path in rig.root.iterdir()], [rig.at().key])
    rig.stop()
    expect(processes_below(rig.root), [])
    expect(list(rig.root.iterdir()), [])
    rig.supervisor.close()


def check_alone(folder: Path, what: str) -> None:
    """Check the next supervisor if no agent asks again: each daemon becomes ready, or nothing of it is left."""
    rig = Rig(folder, delays_s=(0.0,))
    rig.supervisor.begin()

    def is_settled() -> bool:
        reports = rig.supervisor.reports()
        return all(one.is_ready for one in reports) and len(list(rig.root.iterdir())) == len(reports)

    def is_alone() -> bool:  # commands of a killed supervisor are killed with it, which takes a moment
        return len(processes_below(rig.root)) == len(rig.supervisor.reports())

    until(is_settled)
    until(is_alone)
    if what == "change":
        expect(len(rig.supervisor.reports()), 1)
    rig.supervisor.stop(device(), time.monotonic() + 60)
    expect(processes_below(rig.root), [])
    rig.supervisor.close()


def expect(found: object, wanted: object) -> None:
    if found != wanted:
        raise AssertionError(f"{found!r} is not {wanted!r}")


def kill_all(what: str, stride: int, offset: int) -> tuple[int, list[str]]:
    """Kill at every `stride`-th line of a call; return the number of kills and what was found wrong."""
    kills, wrong, line = 0, [], offset
    if MEMORY.is_dir():
        tempfile.tempdir = str(MEMORY)
    while True:
        with short_folder() as folder:
            status, error = in_child(partial(call, folder, what, line))
            if error:
                wrong.append(f"{what}, line {line}: {error}")
                print(f"\n{wrong[-1]}", file=sys.stderr, flush=True)
            if not os.WIFSIGNALED(status) and not (folder / "hit").exists():
                print(f"\n{what}: {kills} kills, {len(wrong)} wrong", file=sys.stderr, flush=True)
                return kills, wrong
            kills += 1
            print(".", end="", file=sys.stderr, flush=True)
            if os.WIFSIGNALED(status):
                check = check_alone if kills % 2 else check_after
                _, error = in_child(partial(check, folder, what))
                if error:
                    wrong.append(f"{what}, killed at line {line}, {check.__name__}: {error}")
                    print(f"\n{wrong[-1]}", file=sys.stderr, flush=True)
        line += stride


def main(arguments: list[str]) -> None:
    stride, _, first = arguments[0].partition(":")
    results = {what: kill_all(what, int(stride), offset=int(first or 0)) for what in arguments[1:] or CALLS}
    kills = {what: count for what, (count, _) in results.items()}
    print(json.dumps({"kills": kills, "wrong": [text for _, wrong in results.values() for text in wrong]}))


if __name__ == "__main__":
    main(sys.argv[1:])
