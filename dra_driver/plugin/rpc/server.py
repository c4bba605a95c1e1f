"""RPC server: serves methods on unix sockets.

Every thread waits for input on all connections, and the kernel wakes one thread for each piece of input. The thread
that reads a request also answers it, so that no call is handed from one thread to another. Before a thread begins to
work on a request, it makes sure that other threads wait for input.
Source: epoll_ctl(2), EPOLLEXCLUSIVE; eventfd(2), EFD_SEMAPHORE.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from dra_driver.model.errors import NodeError
from dra_driver.plugin.rpc import shared_core
from dra_driver.plugin.rpc.answering import MethodCalls, carry_out
from dra_driver.plugin.rpc.call import RpcMethod, StatusCode
from dra_driver.plugin.rpc.connection import RpcConnection
from dra_driver.plugin.rpc.stream import RpcStream
from dra_driver.plugin.rpc.writer import ConnectionLost
from dra_driver.telemetry.logs import fields
from dra_driver.telemetry.thread_start import start_thread

log = logging.getLogger(__name__)

CONNECTIONS = 256  # at the same time; a kubelet has one or two
_BACKLOG = 128
_EVENTS = select.EPOLLIN | select.EPOLLEXCLUSIVE
_MIN_IDLE = 2  # threads that wait for input: a client that does not read may block one of them
_SPARE_THREADS = 16  # at most this many wait; starting a thread takes longer than most calls, so not all are ended
_PAUSE_SECONDS = 0.1  # before connections are accepted again after there was no file descriptor for one
_CUT_OFF_SECONDS = 2.0  # how long calls that were cut off have to notice it


_Ready = tuple[MethodCalls, RpcConnection, RpcStream]  # a request that may be worked on now


class RpcServer:
    """Serves `methods`, by path, on every socket that is added. Any thread may call any method."""

    def __init__(self, methods: Mapping[str, RpcMethod]) -> None:
        self._methods = {path.encode(): MethodCalls(method) for path, method in methods.items()}
        self._mutex = threading.Lock()  # guards everything below
        self._changed = threading.Condition(self._mutex)  # on which `stop` waits
        self._listeners: dict[int, socket.socket] = {}
        self._connections: dict[int, RpcConnection] = {}
        self._pollers: set[select.epoll] = set()  # one for each thread
        self._idle = 0  # how many threads wait for input
        self._active = 0  # how many calls run
        self._is_stopping = self._is_over = False
        self._done = threading.Event()
        self._handed_over: deque[_Ready] = deque()  # requests for the threads that the bell wakes
        self._wake_fd = -1

    def add_socket(self, path: Path) -> None:
        """Listen on a new unix socket. Raises: OSError."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            listener.bind(os.fspath(path))
            listener.listen(_BACKLOG)
        except OSError:
            listener.close()
            raise
        with self._mutex:
            self._listeners[listener.fileno()] = listener
            self._watch(listener.fileno())

    def start(self) -> None:
        """Begin to answer. Raises: NodeError("node.thread") or OSError if no thread can be started for that."""
        self._wake_fd = os.eventfd(0, os.EFD_SEMAPHORE | os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._add_thread()

    @property
    def is_answering(self) -> bool:
        """Return whether any thread reads what clients send, or works on it."""
        return bool(self._pollers)

    def stop(self, grace_s: float) -> threading.Event:
        """Accept nothing more, and let running calls end within `grace_s` seconds; after that they are cut off.

        Return an event that is set when no call runs any more.
        """
        with self._mutex:
            if self._is_stopping:
                return self._done
            self._is_stopping = True
            listeners, self._listeners = self._listeners, {}
            connections = tuple(self._connections.values())
        for listener in listeners.values():
            listener.close()
        for connection in connections:
            connection.leave()
        try:
            start_thread(threading.Thread(target=self._end, args=(grace_s,), name="rpc-end", daemon=True))
        except NodeError:
            self._end(grace_s)  # here, since the calls have to end in any case
        return self._done

    def _end(self, grace_s: float) -> None:
        with self._mutex:
            self._changed.wait_for(lambda: not self._active, grace_s)
            connections, self._connections = self._connections, {}
            self._is_over = True
            self._ring(len(self._pollers))
        for connection in connections.values():
            connection.close()
        with self._mutex:
            self._changed.wait_for(lambda: not self._active, _CUT_OFF_SECONDS)
        self._done.set()
        with self._mutex:
            if self._changed.wait_for(lambda: not self._pollers, _CUT_OFF_SECONDS) and self._wake_fd >= 0:
                os.close(self._wake_fd)

    # Threads

    def _watch(self, fd: int) -> None:
        for poller in self._pollers:
            poller.register(fd, _EVENTS)

    def _begin_thread(self) -> bool:
        """Start one more thread; if that fails, log it, return False, and go on with the present threads."""
        try:
            self._add_thread()
        except (OSError, NodeError) as error:  # no file descriptors, or no processes, are left
            log.warning("no thread could be started for a further call", extra=fields(err=str(error)))
            return False
        return True

    def _add_thread(self) -> None:
        """Start one more thread. Raises: NodeError("node.thread"), OSError."""
        poller = select.epoll()
        start_thread(threading.Thread(target=self._serve, args=(poller,), name="rpc", daemon=True))

    def _serve(self, poller: select.epoll) -> None:
        """Wait for input and work on it, until enough threads wait without this one."""
        with self._mutex:
            if self._is_over:
                return
            for fd in (self._wake_fd, *self._listeners, *self._connections):
                poller.register(fd, _EVENTS)
            self._pollers.add(poller)
            self._idle += 1
        try:
            with shared_core.CALLS.thread():
                while not self._has_to_end(poller):
                    for fd, _ in poller.poll(maxevents=1):
                        self._handle(fd)
        except Exception:
            with self._mutex:
                self._idle -= 1  # this thread does not wait any more
            raise
        finally:
            with self._mutex:
                self._pollers.discard(poller)
            poller.close()

    def _has_to_end(self, poller: select.epoll) -> bool:
        """Return whether this thread has to end; if so, it is no longer counted."""
        if not self._is_over and self._idle <= _SPARE_THREADS:
            return False
        with self._mutex:
            if not self._is_over and self._idle <= _SPARE_THREADS:
                return False
            self._idle -= 1
            self._pollers.discard(poller)
            self._changed.notify_all()
            return True

    def _handle(self, fd: int) -> None:
        if (connection := self._connections.get(fd)) is not None:
            self._read(fd, connection)
        elif fd == self._wake_fd:
            with suppress(BlockingIOError, IndexError):  # another thread was quicker, or this is the end
                os.eventfd_read(fd)
                self._answer(self._handed_over.popleft())
        elif (listener := self._listeners.get(fd)) is not None:
            self._accept(listener)

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
            sock.setblocking(True)
            connection = RpcConnection(sock)
            with self._mutex:
                if self._listeners and self._has_room():
                    self._connections[sock.fileno()] = connection
                    self._watch(sock.fileno())
                    return
            connection.close()
        except (BlockingIOError, ConnectionLost):  # another thread was quicker, or the client is gone
            return
        except OSError as error:
            log.warning("connection not accepted", extra=fields(err=str(error)))
            time.sleep(_PAUSE_SECONDS)  # the client still waits, so the next try would follow at once

    def _has_room(self) -> bool:
        """Return whether one more connection is allowed: for it, the oldest one without a request may have to end."""
        if len(self._connections) < CONNECTIONS:
            return True
        unused = next((one for one in self._connections.values() if one.is_unused), None)
        if unused is not None:
            unused.abandon()  # the thread that reads it next finds the end, and closes it
        return unused is not None and len(self._connections) < 2 * CONNECTIONS

    def _read(self, fd: int, connection: RpcConnection) -> None:
        """Read from a connection and answer what is complete: one request here, further ones in other threads."""
        try:
            streams = connection.requests()
        except ConnectionLost as error:
            log.debug("connection ended", extra=fields(reason=str(error)))
            with self._mutex:
                if self._connections.get(fd) is connection:
                    del self._connections[fd]
            connection.close()
            return
        ready = [one for stream in streams if (one := self._admitted(connection, stream)) is not None]
        if len(ready) > 1:
            self._hand_over(ready[1:])
        if ready:
            self._answer(ready[0])

    def _hand_over(self, ready: list[_Ready]) -> None:
        with self._mutex:
            self._handed_over.extend(ready)
            lacking = len(self._handed_over) + 1 - self._idle
        for _ in range(lacking):
            self._begin_thread()
        self._ring(len(ready))

    def _ring(self, times: int) -> None:
        """Wake `times` threads: each write wakes one of those that wait, whatever number is written."""
        for _ in range(times):
            os.eventfd_write(self._wake_fd, 1)

    # Calls

    def _admitted(self, connection: RpcConnection, stream: RpcStream) -> _Ready | None:
        """Return a request that may be worked on now. Others wait for their turn, or are refused."""
        calls = self._methods.get(stream.path)
        if calls is None:
            self._refuse(connection, stream, StatusCode.UNIMPLEMENTED, "there is no such method")
            return None
        with self._mutex:
            if not calls.admit(connection, stream):
                return None
            self._active += 1
        return calls, connection, stream

    @staticmethod
    def _refuse(connection: RpcConnection, stream: RpcStream, code: StatusCode, details: str) -> None:
        try:
            connection.refuse(stream, code, details)
        except ConnectionLost:
            connection.abandon()

    def _answer(self, ready: _Ready) -> None:
        """Work on a request in this thread; make sure before that others wait."""
        with self._mutex:
            self._idle -= 1
            is_short, is_last = self._idle < _MIN_IDLE, not self._idle
        is_deaf = is_short and not self._begin_thread() and is_last
        calls, _, _ = ready
        if calls.method.is_stream:  # it waits, most of the time
            self._answer_all(*ready, is_refused=is_deaf)
        else:
            with shared_core.CALLS:
                self._answer_all(*ready)

    def _answer_all(
        self, calls: MethodCalls, connection: RpcConnection, stream: RpcStream, *, is_refused: bool = False
    ) -> None:
        """Work on a request, and then on requests for its method that had to wait for their turn.

        They are refused if no other thread would read calls for as long as a stream lasts.
        """
        while True:
            if is_refused:
                self._refuse(connection, stream, StatusCode.RESOURCE_EXHAUSTED, "no thread can be started for a stream")
            else:
                carry_out(calls.method, connection, stream)
            with self._mutex:
                next_call = calls.next_call()
                if next_call is None:
                    self._idle += 1
                    self._active -= 1
                    if self._is_stopping and not self._active:
                        self._changed.notify_all()
                    return
            connection, stream = next_call
