"""Faults of threads in a real agent, below everything of the driver: a module that Python imports when it starts."""

from __future__ import annotations

from pathlib import Path

# While the folder `THREAD_FAULTS` has a file with a thread's name, no thread of that name can be started; a file "all"
# stands for every name. A thread ends as soon as there is a file "end-NAME". With `THREAD_LIMIT`, "USER:NUMBER", the
# agent runs as another user, for whom the kernel allows so many threads in all while there is a file "limit".
MODULE = """
import ctypes
import os
import resource
import threading
import time
from pathlib import Path

FOLDER = Path(os.environ["THREAD_FAULTS"])
_start = threading.Thread.start


def start(thread: threading.Thread) -> None:
    if any((FOLDER / name).exists() for name in (thread.name, "all")):
        raise RuntimeError("can't start new thread")
    _start(thread)


def end_threads() -> None:
    while True:
        if not (FOLDER / "limit").exists():
            resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
        for thread in threading.enumerate():
            if (FOLDER / f"end-{thread.name}").exists():
                ended = ctypes.py_object(SystemExit)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ended)
        time.sleep(0.2)


most = resource.getrlimit(resource.RLIMIT_NPROC)[1]
if limit := os.environ.get("THREAD_LIMIT"):
    user, number = map(int, limit.split(":"))
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
    resource.setrlimit(resource.RLIMIT_NPROC, (number, most))
_start(threading.Thread(target=end_threads, name="thread-faults", daemon=True))
threading.Thread.start = start  # type: ignore[method-assign]
"""


def variables(folder: Path, limit: str = "") -> dict[str, str]:
    """Return the variables of an agent that has the faults for which `folder` has files."""
    (folder / "python").mkdir(exist_ok=True)
    (folder / "python/sitecustomize.py").write_text(MODULE)
    return {"PYTHONPATH": str(folder / "python"), "THREAD_FAULTS": str(folder), "THREAD_LIMIT": limit}
