"""The client of the worker process: it starts the worker, passes questions to it and waits for the answers.

In: a function that loads the board, and questions. Out: answers as bytes, and messages about loading. Only a few
questions are worked on at once; the others wait. A question whose process was ended gets an answer that says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
from collections.abc import Callable
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, NoReturn

from dra_driver.tools.console.board import Board
from dra_driver.tools.console.board_updates import BoardUpdate
from dra_driver.tools.console.cluster_reader import WorkBudget
from dra_driver.tools.console.events import NoPlaceError
from dra_driver.tools.console.responses import MAX_BYTES, WorkerResponse, refusal, unpacked
from dra_driver.tools.console.worker import HEAVY, SECONDS
from dra_driver.tools.world.access import ProgressLines

if TYPE_CHECKING:
    from dra_driver.tools.console.questions import Question
    from dra_driver.tools.console.worker import Load


# The spawner of worker processes: it has one thread, because a process with several threads can't fork safely.

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
    from dra_driver.tools.console.worker import run_worker

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


_GRACE_SECONDS = 0.5  # for the start of a child, beyond the time that its question may take


class WorkerClient:
    """The worker process and the connections to it.

    `start` must be called before the console starts a thread; `start_by_spawner` may be called at any time.
    """

    def __init__(self, budget: WorkBudget) -> None:
        self._feed: Connection
        self._questions: socket.socket
        self._loop: asyncio.AbstractEventLoop | None = None
        self._heavy = budget.heavy.of_backend(), budget.heavy_bytes
        self._quick = budget.quick.of_backend(), budget.quick_bytes
        self.pid = 0

    def start(self, load: Load) -> None:
        """Start the worker, which begins to load."""
        self._feed, feed = Pipe()
        self._questions, questions = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = os.fork()
        if self.pid == 0:
            self._feed.close()
            self._questions.close()
            # The code that answers questions is loaded only in that process.
            from dra_driver.tools.console.worker import run_worker

            run_worker(load, feed, questions)
        feed.close()
        questions.close()

    def start_by_spawner(self, spawner: WorkerSpawner, source: str) -> None:
        """Have the spawner start a worker that begins with the empty board of a cluster.

        Raises: OSError if the spawner is gone.
        """
        self._feed, feed = Pipe()
        self._questions, questions = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with feed, questions:
            spawner.make(source, feed, questions)

    def listen(self, on_message: Callable[[tuple[Any, ...] | None], None]) -> None:
        """Call a function, in the running loop, with each message of the worker, and with None when it is gone."""
        loop = self._loop = asyncio.get_running_loop()

        def receive() -> None:
            try:
                while self._feed.poll():
                    on_message(self._feed.recv())
            except (EOFError, OSError):
                loop.remove_reader(self._feed.fileno())
                on_message(None)

        loop.add_reader(self._feed.fileno(), receive)

    def send(self, update: BoardUpdate) -> None:
        """Send an update of the board, from one thread at a time. Raises: OSError if the worker is gone."""
        self._feed.send(update)

    async def ask(self, question: Question) -> WorkerResponse:
        """Return the answer to a question."""
        places, memory = self._heavy if question["ask"] in HEAVY else self._quick
        try:
            async with places.place():
                return await self._asked(question, memory)
        except NoPlaceError:
            return refusal(503, "busy", "too many questions wait: try again in a moment")

    async def _asked(self, question: Question, memory: int) -> WorkerResponse:
        seconds = SECONDS[question["ask"]]
        ours, theirs = socket.socketpair()
        with ours:
            ours.setblocking(False)
            with theirs:
                try:
                    socket.send_fds(self._questions, [b"%d" % memory], [theirs.fileno()])
                except OSError:
                    return refusal(503, "gone", "the console is ending")
            try:
                async with asyncio.timeout(seconds + _GRACE_SECONDS):
                    content = await self._talk(ours, json.dumps(question).encode())
            except TimeoutError:
                content = b""
            except OSError:
                content = b""
        return unpacked(content) or refusal(
            422,
            "question.too-slow",
            f"this took longer than {seconds:g} s and was ended",
            "a shorter expression, or a filter that leaves fewer devices, may be fast enough",
        )

    @staticmethod
    async def _talk(line: socket.socket, content: bytes) -> bytes:
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(line, content)
        line.shutdown(socket.SHUT_WR)
        found = bytearray()
        while chunk := await loop.sock_recv(line, 1 << 18):
            found += chunk
            if len(found) > MAX_BYTES:
                return refusal(422, "input.too-large", "the answer is too large").packed()
        return bytes(found)

    def close(self) -> None:
        """End the worker. Its children end by themselves."""
        if self._loop is not None and not self._loop.is_closed() and not self._feed.closed:
            self._loop.remove_reader(self._feed.fileno())
        for one in (self._feed, self._questions):
            with contextlib.suppress(OSError):
                one.close()
        if self.pid:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, 0)
