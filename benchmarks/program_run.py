"""One run of a program: when it began and ended, its status, its own peak memory and its processor time.

Linux counts what the address space held that a process leaves at `exec` into the process's peak, and a new process
begins in its parent's address space, or in a copy: started by a benchmark that holds 300 MiB, every program has a peak
of 300 MiB. Hence a small process starts the program, and its 10 MiB are below every peak that is measured.
Source: Linux fs/exec.c, exec_mmap (setmax_mm_hiwater_rss); getrusage(2), ru_maxrss.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO

_STARTER = """
import os, sys, time
silent = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
began = time.monotonic()
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=silent)
_, status, usage = os.wait4(pid, 0)
ended, used = time.monotonic(), usage.ru_utime + usage.ru_stime
print([began, ended, os.waitstatus_to_exitcode(status), usage.ru_maxrss / 1024, used])
"""


@dataclass(frozen=True, slots=True)
class ProgramRun:
    """Begin and end by the monotonic clock, the exit status (below zero: a signal), peak memory and processor time."""

    began: float
    ended: float
    status: int
    peak_mib: float
    processor_s: float

    @property
    def seconds(self) -> float:
        """Return how long the program ran."""
        return self.ended - self.began


def run_program(command: Sequence[str], stdin: BinaryIO | None = None) -> ProgramRun:
    """Run a program, named by its path, to its end. What it prints is thrown away; its errors are shown."""
    starter = [sys.executable, "-I", "-S", "-c", _STARTER, *command]
    answer = subprocess.run(starter, stdin=stdin, stdout=subprocess.PIPE, check=True).stdout
    return ProgramRun(*json.loads(answer))
