"""Runs prepare and unprepare of a claim in child processes that kill themselves at every line of ours, then checks.

    python -m tests.support.plugin.kill_points STRIDE [CALL ...]      stride 1 kills at every line: two minutes

A program of its own (test_kill starts it): it forks, which a process with gRPC's threads must not. For each line that a
call runs through, one child is SIGKILLed there; the next child is the restarted agent, which repairs and checks. Prints
one JSON object: the number of kills by call, and what was found wrong.
"""

import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import dra_driver
from dra_driver.plugin.ledger.record import UNFINISHED
from tests.support.plugin.parts import Rig

PACKAGE = str(Path(dra_driver.__file__).parent)
CALLS = ("prepare", "unprepare", "repeat", "reallocate")
Rig.patience_s = 60.0  # a busy machine is no fault
MEMORY = Path("/dev/shm")  # a kill is no power failure: syncs may cost nothing here
ROOMS = tuple(f"{PACKAGE}/{room}/" for room in ("plugin", "cdi", "sharing", "hardware/simulated/state_file.py"))
ROOMS = tuple(room.removesuffix("/") if room.endswith(".py/") else room for room in ROOMS)


def in_child(work: Callable[[], Any]) -> tuple[int, str]:
    """Run `work` in a fork; give the wait status, and the error that it ended with."""
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
    with os.fdopen(read) as pipe:
        error = pipe.read()
    return os.waitpid(pid, 0)[1], error


def killing_at(line: int) -> Callable[[FrameType, str, Any], Any]:
    """Trace our rooms and die before the given line event (0: the first)."""
    left = line

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.startswith(ROOMS):
            return None
        if event == "line":
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
        return trace

    return trace


def set_up(root: Path, *, is_prepared: bool) -> None:
    rig = rig_at(root)
    rig.prepare("bystander")
    if is_prepared:
        rig.prepare("u1")
    rig.ledger.close()


def rig_at(root: Path) -> Rig:
    rig = Rig(root)
    rig.allocate("bystander", "gpu-3")
    rig.allocate("u1", "gpu-0", "mig-1")
    return rig


def call(root: Path, what: str, line: int) -> None:
    rig = rig_at(root)
    if what == "reallocate":
        rig.allocate("u1", "gpu-1")
    sys.settrace(killing_at(line))
    if what == "unprepare":
        rig.unprepare("u1")
    else:
        rig.prepare("u1")
    sys.settrace(None)


def check(root: Path, what: str) -> None:
    """Be the next agent: repair, write files again once the hardware was looked at, and go on."""
    rig = rig_at(root)
    rig.repair.run()
    rig.repair.refresh_cdi()
    states = rig.states()
    expect(states.pop("bystander", ""), "prepared")
    expect(set(states.values()) - {"prepared"}, set())
    expect(sorted(rig.files()), sorted(rig.file_of(uid) for uid in (*states, "bystander")))
    expect({uid for _, uid in rig.holders()}, {*states, "bystander"})
    if what == "repeat":
        expect(states, {"u1": "prepared"})
    # What the kubelet does next: it asks again, and in the end it unprepares.
    devices = ["gpu-1"] if what == "reallocate" else ["gpu-0", "mig-1"]
    rig.allocate("u1", *devices)
    expect([d.device for d in rig.prepare("u1")], devices)
    expect(rig.holders(), {("gpu-3", "bystander"), *((d, "u1") for d in devices)})
    rig.unprepare("u1")
    expect(list(rig.files()), [rig.file_of("bystander")])
    rig.unprepare("bystander")
    rig.assert_empty()


def check_next_call(root: Path, what: str) -> None:
    """Be an agent that does not repair first: the next call must cope with what it finds."""
    rig = rig_at(root)
    if what == "unprepare":
        rig.unprepare("u1")
        expect(rig.states(), {"bystander": "prepared"})
    else:
        rig.prepare("u1")
        expect(rig.states(), {"bystander": "prepared", "u1": "prepared"})
    expect([r.uid for r in rig.ledger.records() if r.state in UNFINISHED], [])
    rig.unprepare("u1")
    rig.unprepare("bystander")
    rig.repair.run()
    rig.assert_empty()


def expect(found: Any, wanted: Any) -> None:
    if found != wanted:
        raise AssertionError(f"found {found}, wanted {wanted}")


def kill_everywhere(
    what: str,
    checking: Callable[[Path, str], None],
    stride: int,
    *,
    preparing: Callable[..., None] = set_up,
    calling: Callable[[Path, str, int], None] = call,
) -> tuple[int, list[str]]:
    """Kill `what` at every `stride`-th line until it runs through; give the count and what was wrong."""
    wrong: list[str] = []
    line = 0
    folder = Path(tempfile.mkdtemp(prefix="kill-", dir=MEMORY if os.access(MEMORY, os.W_OK) else None))
    root, prepared = folder / "node", folder / "prepared"
    root.mkdir()
    _, error = in_child(partial(preparing, root, is_prepared=what != "prepare"))
    wrong += [f"{what} not begun: {error}"] if error else []
    root.rename(prepared)
    try:
        while True:
            shutil.copytree(prepared, root, symlinks=True)
            status, fault = in_child(partial(calling, root, what, line))
            if status == 0 and not fault:
                return line // stride, wrong
            _, found = in_child(partial(checking, root, what))
            wrong += [f"{what} killed at line event {line}: {text}" for text in (fault, found) if text]
            shutil.rmtree(root)
            line += stride
            print(".", end="", file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(folder)


def main() -> None:
    stride, calls = int(sys.argv[1]), sys.argv[2:] or CALLS
    report: dict[str, Any] = {"kills": {}, "wrong": []}
    for what in calls:
        for checking in (check, check_next_call):
            kills, wrong = kill_everywhere(what, checking, stride)
            report["kills"][f"{what}/{checking.__name__}"] = kills
            report["wrong"] += wrong
    print(json.dumps(report))


if __name__ == "__main__":
    main()
