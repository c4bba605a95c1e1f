"""Injected faults: failures that a test sets up in the embedded API, and the record of requests.

In: failures such as "answer 500 to the next two PUTs of slices". Out: those answers, each as often as it was set up.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass

from dra_driver.embedded.api.httpd import HttpRequest
from dra_driver.embedded.api_rules.refusals import ApiRefusal

WRITES = ("POST", "PUT", "PATCH", "DELETE")
_REASONS = {
    401: "Unauthorized",
    403: "Forbidden",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """One answered request. `at` is the time of the answer by time.monotonic(), in seconds."""

    method: str
    path: str
    query: dict[str, str]
    status: int
    took_s: float
    at: float
    user_agent: str

    @property
    def is_write(self) -> bool:
        """Whether the request was a write."""
        return self.method in WRITES


class RequestLog:
    """The last requests (at most `keep`), and the number of all requests by method."""

    def __init__(self, keep: int = 10_000) -> None:
        self._lock = threading.Lock()
        self._entries: deque[LoggedRequest] = deque(maxlen=keep)
        self.counts: dict[str, int] = {}

    def add(self, request: HttpRequest, status: int, took_s: float) -> None:
        """Record one answer."""
        agent = request.headers.get("user-agent", "")
        entry = LoggedRequest(request.method, request.path, request.query, status, took_s, time.monotonic(), agent)
        with self._lock:
            self._entries.append(entry)
            self.counts[request.method] = self.counts.get(request.method, 0) + 1

    def entries(self, *, method: str = "", contains: str = "") -> list[LoggedRequest]:
        """Return the recorded requests of a method ("" for all) whose path contains a text."""
        with self._lock:
            return [e for e in self._entries if (not method or e.method == method) and contains in e.path]

    def writes(self, contains: str = "") -> list[LoggedRequest]:
        """Return the recorded writes whose path contains a text."""
        return [e for e in self.entries(contains=contains) if e.is_write]

    def clear(self) -> None:
        """Forget all requests so far."""
        with self._lock:
            self._entries.clear()
            self.counts.clear()


@dataclass(slots=True)
class _InjectedFault:
    status: int
    left: int
    method: str
    contains: str
    retry_after_s: int

    def is_for(self, request: HttpRequest) -> bool:
        return self.left > 0 and (not self.method or self.method == request.method) and self.contains in request.path


class InjectedFaults:
    """The faults that a test has set up. `latency_s` delays every answer by that many seconds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: list[_InjectedFault] = []
        self.latency_s = 0.0

    def fail_next(
        self,
        status: int,
        *,
        count: int = 1,
        method: str = "",
        contains: str = "",
        retry_after_s: int = 0,
    ) -> None:
        """Answer `status` to the next `count` requests of a method ("" for all) whose path contains a text.

        With status 0 the connection is closed without an answer.
        """
        with self._lock:
            self._faults.append(_InjectedFault(status, count, method, contains, retry_after_s))

    def clear(self) -> None:
        """Remove all faults."""
        with self._lock:
            self._faults.clear()
            self.latency_s = 0.0

    def apply(self, request: HttpRequest) -> bool:
        """Apply the fault set up for this request, if any; return whether to close the connection without an answer.

        Raises: ApiRefusal with the status of that fault.
        """
        if self.latency_s:
            time.sleep(self.latency_s)
        with self._lock:
            fault = next((o for o in self._faults if o.is_for(request)), None)
            if fault is None:
                return False
            fault.left -= 1
        if fault.status == 0:
            return True
        reason = _REASONS.get(fault.status, "Unknown")
        raise ApiRefusal(fault.status, reason, f"injected by a test: {reason}", retry_after_s=fault.retry_after_s)
