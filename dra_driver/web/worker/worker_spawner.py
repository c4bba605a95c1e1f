"""The spawner of worker processes: it has one thread, because a process with several threads can't fork safely.

In: the ends of a worker's connections, as descriptors. Out: a worker process that begins with an empty board.
"""

from __future__ import annotations

import os
import signal
import socket
from functools import partial
from multiprocessing.connection import Connection
from typing import NoReturn

from dra_driver.views.board.board import Board
from dra_driver.views.progress import ProgressLines

_MAX_SOURCE = 1 << 10  # bytes of the text that names a board's source


class WorkerSpawner:
    """The process and the socket to it. Call `start` before the console starts a thread."""

    def __init__(self) -> None:
        self._line: socket.socket

    def start(self) -> None:
        """Start the process."""
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork() == 0:
            self._line.close()
            _spawn_workers(theirs)
        theirs.close()

    def make(self, source: str, feed: Connection, questions: socket.socket) -> None:
        """Fork a worker process that has these ends of its connections. Raises: OSError if the spawner is gone."""
        words = source.encode()[:_MAX_SOURCE] or b" "
        socket.send_fds(self._line, [words], [feed.fileno(), questions.fileno()])

    def close(self) -> None:
        """End the process. The workers end when their own connections are closed."""
        self._line.close()


def _spawn_workers(line: socket.socket) -> NoReturn:
    # The code that answers questions is imported here once, for all workers.
    from dra_driver.web.worker.process import run_worker

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        words, descriptors, _, _ = socket.recv_fds(line, _MAX_SOURCE, 2)
        if not words:
            os._exit(0)
        if os.fork() == 0:
            line.close()
            load = partial(_empty, words.decode(errors="replace"))
            run_worker(load, Connection(descriptors[0]), socket.socket(fileno=descriptors[1]))
        for descriptor in descriptors:
            os.close(descriptor)


def _empty(source: str, _lines: ProgressLines) -> Board:
    return Board.of_cluster(source)
