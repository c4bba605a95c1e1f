"""A response on its way from the worker to a browser: a line with the status, then a document.

In: a document or a fault, in a child process that may end at any time. Out: bytes, and whether they are complete.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from dra_driver.base.errors import ApiError, DriverError
from dra_driver.tools.world.access import ProgressLine, ProgressLines

MAX_BYTES = 32 << 20  # the most bytes of an answer


@dataclass(frozen=True, slots=True)
class WorkerResponse:
    """An HTTP status and a JSON document as bytes."""

    status: int
    body: bytes

    def packed(self) -> bytes:
        """Return the bytes that `unpacked` reads."""
        return b"%d\n" % self.status + self.body


def unpacked(content: bytes) -> WorkerResponse | None:
    """Return an answer; None if it is incomplete because the process that worked on it was ended."""
    status, newline, body = content.partition(b"\n")
    if not newline or not status.isdigit() or not body.endswith(b"\n"):
        return None
    return WorkerResponse(int(status), body)


def refusal(status: int, code: str, message: str, hint: str = "") -> WorkerResponse:
    """Return the document of an error."""
    return WorkerResponse(status, written({"error": {"code": code, "message": message, "hint": hint}}))


def of_fault(fault: DriverError) -> WorkerResponse:
    """Return the document of an error of the driver's tree."""
    return refusal(502 if isinstance(fault, ApiError) else 422, fault.code, fault.message, fault.hint)


def written(document: Any) -> bytes:
    """Return a document as bytes; the newline at its end shows that it is complete."""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=True).encode() + b"\n"


# The progress of the worker's loading, as messages to the console.

SendMessage = Callable[[tuple[Any, ...]], None]
_SECONDS = 0.1


class _SentProgress:
    def __init__(self, send: SendMessage, noun: str, total: int) -> None:
        self._send, self._noun, self._total = send, noun, total
        self._next = 0.0

    def update(self, done: int) -> None:
        """Send how many are done, unless that was sent a moment ago."""
        if (now := time.monotonic()) >= self._next:
            self._next = now + _SECONDS
            self._send(("progress", self._noun, done, self._total))

    def close(self) -> None:
        """Do nothing: the next message shows that the task has ended."""


def progress_lines(send: SendMessage) -> ProgressLines:
    """Return progress lines that are sent as messages."""

    def begin(noun: str, total: int = 0) -> ProgressLine:
        return _SentProgress(send, noun, total)

    return begin


# Fairness between viewers when there is no more room: whoever holds most gives up what was used least recently.

_ACCOUNT = "system:serviceaccount:"
Key = TypeVar("Key")


def owner_of_user(user: str) -> str:
    """Return to whom what a user holds is counted: all ServiceAccounts of a namespace count as one.

    Whoever may create one ServiceAccount in a namespace may create a thousand there.

    >>> owner_of_user("system:serviceaccount:team-a:train"), owner_of_user("alice")
    ('system:serviceaccount:team-a', 'alice')
    """
    return user.rpartition(":")[0] if user.startswith(_ACCOUNT) else user


def to_give_up(held: Mapping[Key, tuple[str, float]]) -> Key:
    """Return the least recently used entry of the owner who has most; `held` is the owner and the time of each."""
    counts = Counter(owner for owner, _ in held.values())
    return min(held, key=lambda key: (-counts[held[key][0]], held[key][1]))
