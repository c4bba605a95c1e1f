"""RPC call: one call as a method of a gRPC service sees it, and how the call ends.

Source: gRPC over HTTP2, "Requests" (Timeout), "Responses" (Trailers, percent-encoding) and the status codes of gRPC.
"""

from __future__ import annotations

import enum
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_TIMEOUT = re.compile(rb"([0-9]{1,8})([HMSmun])")
_SECONDS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}


class StatusCode(enum.IntEnum):
    """How a call ended, with gRPC's numbers."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


class CallEnd(Exception):
    """Ends a call with a status other than OK."""

    def __init__(self, code: StatusCode, details: str) -> None:
        super().__init__(details)
        self.code, self.details = code, details


@dataclass(frozen=True, slots=True)
class RpcMethod:
    """One method of a service.

    Attributes:
        answer: gets the request and the call, and returns the response; with `is_stream`, an iterator over responses.
        read: returns the request in the bytes of a message. Raises: any error, for bytes that are no request.
        most: how many calls run at the same time; further calls wait for their turn.
        is_stream: whether there are several responses.
    """

    answer: Callable[[Any, RpcCall], Any]
    read: Callable[[bytes], Any]
    maximum: int
    is_stream: bool = False


class RpcCall:
    """One call. Any thread may check whether it is still active, and end it."""

    def __init__(self, timeout: bytes | None = None) -> None:
        """Begin a call with the client's `timeout`, in gRPC's form. Raises: ValueError if it has another form."""
        self._until = _until(timeout)
        self._mutex = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []
        self.is_over = False  # whether it was answered, or its answer is no longer wanted
        self.trailers: tuple[tuple[str, str], ...] = ()

    def is_active(self) -> bool:
        """Return whether the client still waits for an answer."""
        return not self.is_over and (self._until is None or time.monotonic() < self._until)

    def time_remaining(self) -> float | None:
        """Return for how many seconds the client still waits; None if it set no limit."""
        return None if self._until is None else max(0.0, self._until - time.monotonic())

    def add_callback(self, callback: Callable[[], None]) -> bool:
        """Arrange that `callback` is called when the call is over; return False if it is over already."""
        with self._mutex:
            if self.is_over:
                return False
            self._callbacks.append(callback)
            return True

    def abort(self, code: StatusCode, details: str) -> None:
        """End the call with an error. Raises: CallEnd, which the method must not catch."""
        raise CallEnd(code, details)

    def set_trailing_metadata(self, metadata: tuple[tuple[str, str], ...]) -> None:
        """Set the metadata that is sent after the answer, together with the status."""
        self.trailers = metadata

    def over(self) -> None:
        """Record that the call was answered, or that its answer is no longer wanted."""
        with self._mutex:
            callbacks, self._callbacks, self.is_over = self._callbacks, [], True
        for callback in callbacks:
            callback()


def _until(timeout: bytes | None) -> float | None:
    if timeout is None:
        return None
    found = _TIMEOUT.fullmatch(timeout)
    if found is None:
        raise ValueError("the timeout is not in gRPC's form")
    return time.monotonic() + int(found[1]) * _SECONDS[found[2]]
