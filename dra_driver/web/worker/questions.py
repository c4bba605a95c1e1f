"""The questions that a page may ask of the board, and the bounds of each.

In: a question as a mapping of texts. Out: the view that answers it. All values are checked: they come from a browser.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, cast

from dra_driver.model.errors import InputError
from dra_driver.model.wire import Wire
from dra_driver.views.board.attention import attention
from dra_driver.views.board.board import Board
from dra_driver.views.board.claims_page import MAX_ROWS, claim_page, claims_page, explanation
from dra_driver.views.board.device_page import device_page
from dra_driver.views.board.fleet_page import MAX_NODES, FleetFilter, fleet_page, fleet_summary
from dra_driver.views.board.playground import Trial, completions, explain_on, try_selector
from dra_driver.views.board.what_if import MAX_TEXT as MAX_PASTED
from dra_driver.views.board.what_if import FleetChange, what_if
from dra_driver.views.objects.shape_checker import ShapeChecker
from dra_driver.web.worker.left_out import key_of

BoardQuestion = Mapping[str, Any]
_MAX_TEXT = 32 << 10  # characters of a value


def _text(question: BoardQuestion, name: str, maximum: int = _MAX_TEXT) -> str:
    value = question.get(name, "")
    if not isinstance(value, str) or len(value) > maximum:
        raise InputError("question", f"{name} is not a text of at most {maximum:,} characters")
    return value


def _count(question: BoardQuestion, name: str, default: int, maximum: int) -> int:
    value = question.get(name, default)
    text = str(value)
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InputError("question", f"{name} is not a number from 0 to {maximum:,}")
    return min(int(text), maximum)


def _summary(board: Board, _question: BoardQuestion) -> Wire:
    return fleet_summary(board).wire()


def _fleet(board: Board, question: BoardQuestion) -> Wire:
    fields = ("name", "labels", "model", "namespace", "state", "expression")
    wanted = FleetFilter(**{name: _text(question, name) for name in fields})
    offset = _count(question, "offset", 0, 10**8)
    return fleet_page(board, wanted, offset, _count(question, "count", MAX_NODES, MAX_NODES)).wire()


def _device(board: Board, question: BoardQuestion) -> Wire:
    return device_page(board, *(_text(question, name) for name in ("node", "pool", "device"))).wire()


def _trial(question: BoardQuestion) -> Trial:
    gates = question.get("gates") or {}
    if not isinstance(gates, dict) or len(gates) > 20 or not all(isinstance(on, bool) for on in gates.values()):
        raise InputError("question", "gates is not a mapping of names to true or false")
    environment = _text(question, "environment") or "new"
    if environment not in {"new", "stored"}:
        raise InputError("question", "environment is new or stored")
    return Trial(
        _text(question, "expression"),
        _text(question, "kubernetes"),
        tuple(gates.items()),
        cast("Literal['new', 'stored']", environment),
    )


def _selector(board: Board, question: BoardQuestion) -> Wire:
    return try_selector(board, _trial(question)).wire()


def _selector_on(board: Board, question: BoardQuestion) -> Wire:
    place = (_text(question, name) for name in ("node", "pool", "device"))
    return explain_on(board, _trial(question), *place).wire()


def _claims(board: Board, question: BoardQuestion) -> Wire:
    offset, count = _count(question, "offset", 0, 10**8), _count(question, "count", MAX_ROWS, MAX_ROWS)
    return claims_page(board, _text(question, "name"), _text(question, "namespace"), offset, count).wire()


def _claim(board: Board, question: BoardQuestion) -> Wire:
    namespace, name, read = _text(question, "namespace"), _text(question, "name"), question.get("read")
    return claim_page(board, namespace, name, _checked(*read) if read else None).wire()


def _checked(claim: Wire, pods: Sequence[Wire]) -> tuple[Wire, list[Wire]]:
    """Return a claim that was just read, and those of its pods that have the shape of a pod.

    Raises: InputError for a claim that does not have the shape of a claim.
    """
    checker = ShapeChecker()
    checker.check("ResourceClaim", claim, "cluster")
    if key_of(claim) is None:
        raise InputError("object", "cluster: a ResourceClaim has no name")
    known = []
    for pod in pods:
        with contextlib.suppress(InputError):
            checker.check("Pod", pod, "cluster")
            known.append(pod)
    return claim, [pod for pod in known if key_of(pod) is not None]


def _explanation(board: Board, question: BoardQuestion) -> Wire:
    return explanation(board, *(_text(question, name) for name in ("kind", "namespace", "name"))).wire()


def _attention(board: Board, _question: BoardQuestion) -> Wire:
    return attention(board).wire()


def _texts(question: BoardQuestion, name: str) -> tuple[str, ...]:
    value = question.get(name) or []
    is_list = isinstance(value, list) and len(value) <= 500
    if not is_list or not all(isinstance(one, str) and len(one) < 600 for one in value):
        raise InputError("question", f"{name} is not a list of names")
    return tuple(value)


def _what_if(board: Board, question: BoardQuestion) -> Wire:
    pairs = tuple(one.partition("=") for one in _texts(question, "recut"))
    change = FleetChange(
        _text(question, "objects", MAX_PASTED),
        _texts(question, "picked"),
        _texts(question, "added"),
        _texts(question, "drained"),
        _texts(question, "lost"),
        tuple((node, profile) for node, _, profile in pairs),
    )
    return what_if(board, change).wire()


def _completions(board: Board, question: BoardQuestion) -> Wire:
    return {"candidates": completions(board, _trial(question), _text(question, "before"))}


ANSWERS: dict[str, Callable[[Board, BoardQuestion], Wire]] = {
    "summary": _summary,
    "fleet": _fleet,
    "device": _device,
    "claims": _claims,
    "claim": _claim,
    "explanation": _explanation,
    "attention": _attention,
    "what-if": _what_if,
    "selector": _selector,
    "selector/explain": _selector_on,
    "selector/completions": _completions,
}
