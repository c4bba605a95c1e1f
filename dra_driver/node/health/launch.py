"""The first step of a test's process: limits, then the program. Started as a file, with one argument in JSON.

The process ends together with its parent, enters the cgroup that limits its memory, and is the first that the kernel
ends when memory is short. Then it runs a program of `hardware.compute`, or becomes the administrator's command.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
NOT_STARTED = 126  # the exit status that shells use for a program that can't be run


def main() -> None:
    """Limit this process and run the program."""
    spec: dict[str, Any] = json.loads(sys.argv[1])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != spec["parent"]:  # the parent ended before the call
        os._exit(NOT_STARTED)
    signal.setitimer(signal.ITIMER_REAL, spec["deadline"])  # in case the parent is stopped
    try:
        _limit(spec)
        if spec["argv"]:
            os.execve(spec["argv"][0], spec["argv"], dict(os.environ))
    except OSError as error:
        print(f"the test can't be started: {error}", flush=True)  # noqa: T201 - the parent reads the output
        os._exit(NOT_STARTED)
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
    importlib.import_module(spec["module"]).main(spec["request"])


def _limit(spec: dict[str, Any]) -> None:
    Path("/proc/self/oom_score_adj").write_text("1000")
    if spec["cgroup"]:
        Path(spec["cgroup"], "cgroup.procs").write_text("0")
    else:  # if no cgroup can be made, the memory that the process itself writes is limited
        resource.setrlimit(resource.RLIMIT_DATA, (spec["memory"], spec["memory"]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    main()
