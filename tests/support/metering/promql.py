"""Which metrics a PromQL expression asks for, found without a parser: names that are neither words nor labels.

Source: Prometheus' documentation of its query language.
"""

from __future__ import annotations

import re

_STRINGS = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`")
_LABELS = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)")
_MATCHERS = re.compile(r"\{[^}]*\}")
_RANGES = re.compile(r"\[[^\]]*\]")
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_CALL = re.compile(r"[a-z_0-9]+\s*\(")
_WORDS = frozenset(
    [
        "and",
        "or",
        "unless",
        "bool",
        "offset",
        "inf",
        "nan",
        "start",
        "end",
        "by",
        "without",
        "on",
        "ignoring",
        "group_left",
        "group_right",
    ]
)
_NUMBER = re.compile(r"\b\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?:ms|[smhdwy])?\b")


def metrics_of(expression: str) -> set[str]:
    text = _STRINGS.sub('""', expression)
    for pattern in (_LABELS, _MATCHERS, _RANGES, _CALL, _NUMBER):
        text = pattern.sub(" ", text)
    return {name for name in _NAME.findall(text) if name.lower() not in _WORDS}
