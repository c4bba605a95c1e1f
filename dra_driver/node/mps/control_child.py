"""Control child: the small program that runs in a new process before it becomes NVIDIA's control program.

It waits until its parent has recorded its identity, enters the device's cgroup and the daemon's file system, and then
executes the control program. If the parent dies first, it ends, so no daemon ever runs without a record. One line of
JSON comes in on descriptor 0; an error goes out on descriptor 3, which is closed when the control program begins.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

_REPORT = 3
_STATUS = 126


def main() -> None:
    """Wait for the parent's line, do what it asks, and execute the control program."""
    os.set_inheritable(_REPORT, False)
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        os._exit(_STATUS)  # the parent is gone, and may not have recorded this process
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
    from dra_driver.base.errors import DriverError  # noqa: PLC0415 - the package's path is set only above

    try:
        _become(json.loads(line))
    except DriverError as error:
        _report(error.code.partition(".")[2], error.message, error.hint)
    except OSError as error:
        _report("mps-no-program", f"the MPS control program can't be started: {error.strerror}", "")


def _become(spec: dict[str, Any]) -> None:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # opened now, because a driver root may lack this node
    if spec["cgroup"]:
        _enter_cgroup(Path(spec["cgroup"]))
    if spec["view"]:
        from dra_driver.node.mps import daemon_folder  # noqa: PLC0415 - not loaded where nothing is mounted

        daemon_folder.enter_private(*map(Path, spec["view"]))
    os.chdir("/")
    for number in (signal.SIGPIPE, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    os.execve(spec["argv"][0], spec["argv"], spec["environment"])


def _enter_cgroup(path: Path) -> None:
    from dra_driver.base.errors import SharingError  # noqa: PLC0415
    from dra_driver.node.mps import daemon  # noqa: PLC0415

    try:
        daemon.enter(path)
    except OSError as exc:
        text = f"the MPS daemon can't enter {path}: {exc.strerror}"
        raise SharingError("mps-cgroup", text, hint=daemon.HINT) from exc


def _report(code: str, message: str, hint: str) -> None:
    os.write(_REPORT, json.dumps({"code": code, "message": message, "hint": hint}).encode())
    os._exit(_STATUS)


if __name__ == "__main__":
    main()
