"""Threads that can't be started, as where the kernel allows a process no more of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock


@contextmanager
def no_thread_starts(prefix: str = "") -> Iterator[None]:
    """Let no thread start whose name begins with `prefix`."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith(prefix):
            raise RuntimeError("can't start new thread")
        start(thread)

    with mock.patch.object(threading.Thread, "start", refuse):
        yield
