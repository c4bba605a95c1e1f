"""RpcCall: what a method of a gRPC service gets to know of one call, and how it ends.

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
    """How a call ended, as gRPC numbers it."""

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
    """One method of a service: `answer` gets the request and the call.

    It returns the response, or with `is_stream` an iterator over responses. At most `most` calls run at once; further
    ones wait for their turn.
    """

    answer: Callable[[Any, RpcCall], Any]
    read: Callable[[bytes], Any]
    most: int
    is_stream: bool = False


class RpcCall:
    """One call. Any thread may ask whether it is still active, and end it from outside."""

    def __init__(self, timeout: bytes | None = None) -> None:
        """`timeout` is the client's, as gRPC writes it. Raises: ValueError for one that gRPC does not have."""
        self._until = _until(timeout)
        self._mutex = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []
        self.is_over = False  # whether it was answered, or its answer is no longer wanted
        self.trailers: tuple[tuple[str, str], ...] = ()

    def is_active(self) -> bool:
        """Return whether the client still waits for an answer."""
        return not self.is_over and (self._until is None or time.monotonic() < self._until)

    def time_remaining(self) -> float | None:
        """Return the seconds for which the client waits; None if it set no limit."""
        return None if self._until is None else max(0.0, self._until - time.monotonic())

    def add_callback(self, callback: Callable[[], None]) -> bool:
        """Arrange that `callback` runs when the call is over; return False if it is over already."""
        with self._mutex:
            if self.is_over:
                return False
            self._callbacks.append(callback)
            return True

    def abort(self, code: StatusCode, details: str) -> None:
        """End the call with an error. Raises: CallEnd, which the method must let through."""
        raise CallEnd(code, details)

    def set_trailing_metadata(self, metadata: tuple[tuple[str, str], ...]) -> None:
        """Set what is sent after the answer, beside the status."""
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
        raise ValueError("the timeout is not one of gRPC's")
    return time.monotonic() + int(found[1]) * _SECONDS[found[2]]
