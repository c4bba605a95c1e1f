"""An answer on its way from the desk to a browser: a status line, then a document.

In: a question and the board, in a child process that may end at any time. Out: bytes. A fault that the driver foresees
becomes its code, message and hint; for any other the browser learns that it is a bug, and nothing of the process.
"""

from __future__ import annotations

import json
import traceback
from dataclasses import dataclass
from typing import Any

from dra_driver.model.errors import ApiError, DriverError
from dra_driver.views.board.board import Board
from dra_driver.web.questions import KINDS, Asked

MOST_BYTES = 32 << 20  # of an answer


@dataclass(frozen=True, slots=True)
class DeskAnswer:
    """An HTTP status and a JSON document as bytes."""

    status: int
    body: bytes

    def packed(self) -> bytes:
        """Return the bytes that `unpacked` reads."""
        return b"%d\n" % self.status + self.body


def unpacked(content: bytes) -> DeskAnswer | None:
    """Return an answer; None if it is not whole, because the process that worked on it was ended."""
    status, newline, body = content.partition(b"\n")
    if not newline or not status.isdigit() or not body.endswith(b"\n"):
        return None
    return DeskAnswer(int(status), body)


def refusal(status: int, code: str, message: str, hint: str = "") -> DeskAnswer:
    """Return the document of an error."""
    return DeskAnswer(status, _written({"error": {"code": code, "message": message, "hint": hint}}))


def of_fault(fault: DriverError) -> DeskAnswer:
    """Return the document of a fault that the driver foresees."""
    return refusal(502 if isinstance(fault, ApiError) else 422, fault.code, fault.message, fault.hint)


def answer(board: Board, question: Asked) -> DeskAnswer:
    """DeskAnswer one question. Raises nothing."""
    try:
        return DeskAnswer(200, _written(KINDS[str(question["ask"])].answer(board, question)))
    except DriverError as fault:
        return of_fault(fault)
    except (MemoryError, RecursionError):
        return refusal(422, "input.too-large", "this needs more memory than one question may use")
    except Exception:  # noqa: BLE001  the process ends, and with it whatever was wrong
        traceback.print_exc()
        return refusal(500, "bug", "this is a bug in dra-driver: the terminal of the console shows it")


def _written(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=True).encode() + b"\n"
