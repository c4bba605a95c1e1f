"""The fields of a question that a page asks, each with its bound.

In: the JSON object of a question, which anybody may have written. Out: texts, counts, names, and the `Trial` of a
selector. The site's playground reads its questions with this module, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, cast

from dra_driver.base.errors import InputError
from dra_driver.tools.console.playground import Trial

Question = Mapping[str, Any]
_MAX_TEXT = 32 << 10  # characters of a value


def text_of(question: Question, name: str, maximum: int = _MAX_TEXT) -> str:
    """Return a field that is a text, "" if it is missing. Raises: InputError."""
    value = question.get(name, "")
    if not isinstance(value, str) or len(value) > maximum:
        raise InputError("question", f"{name} is not a text of at most {maximum:,} characters")
    return value


def count_of(question: Question, name: str, default: int, maximum: int) -> int:
    """Return a field that is a number, at most `maximum`. Raises: InputError."""
    value = question.get(name, default)
    text = str(value)
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InputError("question", f"{name} is not a number from 0 to {maximum:,}")
    return min(int(text), maximum)


def texts_of(question: Question, name: str) -> tuple[str, ...]:
    """Return a field that is a list of at most 500 names. Raises: InputError."""
    value = question.get(name) or []
    is_list = isinstance(value, list) and len(value) <= 500
    if not is_list or not all(isinstance(one, str) and len(one) < 600 for one in value):
        raise InputError("question", f"{name} is not a list of names")
    return tuple(value)


def device_id_of(question: Question) -> tuple[str, str, str]:
    """Return the driver, the pool and the name of the device that is asked about. Raises: InputError."""
    return text_of(question, "driver"), text_of(question, "pool"), text_of(question, "device")


def trial_of(question: Question, kubernetes: str) -> Trial:
    """Return the selector to try; `kubernetes` is the version if the question names none. Raises: InputError."""
    gates = question.get("gates") or {}
    if not isinstance(gates, dict) or len(gates) > 20 or not all(isinstance(on, bool) for on in gates.values()):
        raise InputError("question", "gates is not a mapping of names to true or false")
    environment = text_of(question, "environment") or "new"
    if environment not in {"new", "stored"}:
        raise InputError("question", "environment is new or stored")
    return Trial(
        text_of(question, "expression"),
        text_of(question, "kubernetes") or kubernetes,
        tuple(gates.items()),
        cast("Literal['new', 'stored']", environment),
    )
