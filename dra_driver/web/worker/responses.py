"""A response on its way from the worker to a browser: a line with the status, then a document.

In: a document or a fault, in a child process that may end at any time. Out: bytes, and whether they are complete.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from dra_driver.model.errors import ApiError, DriverError

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
