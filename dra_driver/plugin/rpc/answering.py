"""Answering: calls methods with complete requests, and sends what they return."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from typing import Any

from dra_driver.plugin.rpc.call import CallEnd, RpcMethod, StatusCode
from dra_driver.plugin.rpc.connection import RpcConnection
from dra_driver.plugin.rpc.stream import RpcStream
from dra_driver.plugin.rpc.writer import ConnectionLost
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)


_TIDY = 1024  # when so many calls wait, those that were cancelled are removed


class MethodCalls:
    """How many calls of a method are running, and which calls wait for their turn. The caller holds a lock."""

    __slots__ = ("_running", "_tidy", "_waiting", "method")

    def __init__(self, method: RpcMethod) -> None:
        self.method, self._running, self._tidy = method, 0, _TIDY
        self._waiting: deque[tuple[RpcConnection, RpcStream]] = deque()

    def __len__(self) -> int:
        """Return how many calls run or wait."""
        return self._running + len(self._waiting)

    def admit(self, connection: RpcConnection, stream: RpcStream) -> bool:
        """Return True, and count the call, if it may run now; otherwise let it wait for its turn."""
        if self._running >= self.method.maximum:
            self._waiting.append((connection, stream))
            if len(self._waiting) > self._tidy:
                self._waiting = deque(one for one in self._waiting if not one[1].call.is_over)
                self._tidy = max(_TIDY, 2 * len(self._waiting))
            return False
        self._running += 1
        return True

    def next_call(self) -> tuple[RpcConnection, RpcStream] | None:
        """Return the call that may run now that another one has ended, or None if no call waits.

        Calls that were cancelled while they waited are left out.
        """
        while self._waiting:
            connection, stream = self._waiting.popleft()
            if not stream.call.is_over:
                return connection, stream
        self._running -= 1
        return None


def carry_out(method: RpcMethod, connection: RpcConnection, stream: RpcStream) -> None:
    """Call a method and send what it returns, or the error. It never raises an error."""
    try:
        _answer(method, connection, stream)
    except ConnectionLost as error:
        log.info("a call's answer was not sent", extra=fields(reason=str(error)))
        connection.abandon()
    except Exception:
        log.exception("bug: unexpected error")
        connection.abandon()


def _answer(method: RpcMethod, connection: RpcConnection, stream: RpcStream) -> None:
    try:
        request = method.read(stream.message())
    except Exception as error:  # noqa: BLE001 - whoever raised it, the request is not what it should be
        connection.end(stream, StatusCode.INTERNAL, f"the request can't be read: {error}")
        return
    try:
        found = method.answer(request, stream.call)
        if method.is_stream:
            _send_all(found, connection, stream)
            connection.end(stream, StatusCode.OK)
        elif not stream.call.is_over:
            connection.answer(stream, found.SerializeToString())
    except ConnectionLost:
        raise
    except CallEnd as end:
        connection.end(stream, end.code, end.details)
    except Exception as error:
        log.exception("bug: unexpected error")
        connection.end(stream, StatusCode.UNKNOWN, f"{type(error).__name__}: {error}")


def _send_all(messages: Iterator[Any], connection: RpcConnection, stream: RpcStream) -> None:
    for message in messages:
        if stream.call.is_over:
            return
        connection.send(stream, message.SerializeToString())
