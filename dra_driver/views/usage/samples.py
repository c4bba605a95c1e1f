"""Samples from the answers of a Prometheus and from the pages of agents, both of which are hostile until checked.

In: a decoded answer, or the text of a page. Out: samples whose labels are short texts and whose values are finite.
Sources: Prometheus' HTTP API ("Instant queries"), its text format 0.0.4.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dra_driver.model.errors import ApiError
from dra_driver.model.wire import Wire

MAX_SAMPLES = 200_000
MAX_LABELS = 64
LONGEST_LABEL = 1024
_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)(?: -?\d+)?")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)",?')
_ESCAPES = {"n": "\n", "\\": "\\", '"': '"'}


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of one series."""

    name: str
    labels: Mapping[str, str]
    value: float


def samples_of_answer(answer: Wire, where: str) -> list[Sample]:
    """Return the samples of the answer to an instant query. NaN is left out. Raises: ApiError."""
    data = answer.get("data")
    if answer.get("status") != "success" or not isinstance(data, dict) or data.get("resultType") != "vector":
        reason = str(answer.get("error") or "")[:300]
        raise _bad(where, f"it is not the answer to a query {reason}".rstrip())
    result = data.get("result")
    if not isinstance(result, list):
        raise _bad(where, "its result is not a list")
    if len(result) > MAX_SAMPLES:
        raise _bad(where, f"it has {len(result)} series; at most {MAX_SAMPLES} are allowed; use -n for one namespace")
    found = (_of_row(row, where) for row in result)
    return [one for one in found if math.isfinite(one.value)]


def _of_row(row: Any, where: str) -> Sample:
    metric, value = (row.get("metric"), row.get("value")) if isinstance(row, dict) else (None, None)
    if not isinstance(metric, dict) or not isinstance(value, list) or len(value) != 2 or not isinstance(value[1], str):
        raise _bad(where, "one of its series has no labels or no value")
    if len(metric) > MAX_LABELS or not all(_is_label(text) for pair in metric.items() for text in pair):
        raise _bad(where, "one of its series has too many labels, or labels that are too long or not texts")
    try:
        number = float(value[1])
    except ValueError as error:
        raise _bad(where, f"{value[1][:40]!r} is not a number") from error
    return Sample(
        metric.get("__name__", ""), {name: text for name, text in metric.items() if name != "__name__"}, number
    )


def samples_of_page(text: str, prefix: str, where: str) -> Iterator[Sample]:
    """Yield the samples of a page whose names begin with a prefix. Raises: ApiError for a line that is not a sample."""
    count = 0
    for line in text.splitlines():
        if not line.startswith(prefix):
            continue
        count += 1
        matched = _SAMPLE.fullmatch(line)
        labels = _labels(matched[2] or "") if matched else None
        if matched is None or labels is None or count > MAX_SAMPLES:
            raise _bad(where, f"{line[:80]!r} is not a sample, or there are more than {MAX_SAMPLES} samples")
        try:
            value = float(matched[3])
        except ValueError as error:
            raise _bad(where, f"the value of {line[:80]!r} is not a number") from error
        if math.isfinite(value):
            yield Sample(matched[1], labels, value)


def _labels(text: str) -> dict[str, str] | None:
    """Return labels by name; None if the text is not a list of labels."""
    found: dict[str, str] = {}
    at = 0
    while at < len(text):
        matched = _LABEL.match(text, at)
        if matched is None or matched[1] in found or len(matched[2]) > LONGEST_LABEL or len(found) >= MAX_LABELS:
            return None
        found[matched[1]] = _unescaped(matched[2]) if "\\" in matched[2] else matched[2]
        at = matched.end()
    return found


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda one: _ESCAPES.get(one[1], one[0]), text)


def _is_label(text: Any) -> bool:
    return isinstance(text, str) and len(text) <= LONGEST_LABEL


def _bad(where: str, why: str) -> ApiError:
    return ApiError("metrics", f"{where}: the answer can't be used: {why}")
