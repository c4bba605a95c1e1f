"""The questions about selectors, and what Kubernetes' own compiler answers.

In: expressions. Out: verdicts of each edition; only those that are the same when asked twice, since some errors depend
on the order of a Go map.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cluster.oracle import recordings
from cluster.oracle.editions import SELECTOR_EDITIONS, Edition
from cluster.oracle.expressions import random_expressions
from cluster.oracle.ours import Verdict, their_selector_verdict
from cluster.oracle.program import ask

SEED, COUNT = 20, 1500
WRITTEN = recordings.FOLDER / "expressions.txt"
MISTAKES = recordings.FOLDER / "mistakes.txt"
MISTAKEN_EDITIONS = (Edition("1.35", shares=True), Edition("1.37", shares=True))


def written_expressions(path: Path = WRITTEN) -> list[str]:
    """Return the expressions of a file that was written by hand."""
    lines = path.read_text().splitlines()
    return [line for line in lines if line and not line.startswith("# ")]


def texts_of(expressions: Sequence[str], edition: Edition) -> list[str]:
    """Return Kubernetes' whole error about each expression; "" if it compiles."""
    answers = ask(edition.kubernetes, "selectors", edition.header(), list(expressions))
    return [str(answer.get("error", "")) for answer in answers]


def verdicts_of(expressions: Sequence[str], edition: Edition) -> list[Verdict]:
    """Return Kubernetes' verdict on each expression."""
    answers = ask(edition.kubernetes, "selectors", edition.header(), list(expressions))
    return [their_selector_verdict(answer) for answer in answers]


def record() -> None:
    """Record all editions."""
    expressions = [*written_expressions(), *random_expressions(SEED, COUNT)]
    verdicts = _steady(expressions, SELECTOR_EDITIONS, verdicts_of)
    recordings.write(recordings.SELECTORS, list(map(str, SELECTOR_EDITIONS)), verdicts)
    texts = _steady(written_expressions(MISTAKES), MISTAKEN_EDITIONS, texts_of)
    recordings.write(recordings.MISTAKES, list(map(str, MISTAKEN_EDITIONS)), texts)


def _steady(
    expressions: Sequence[str], editions: Sequence[Edition], answers_of: Callable[[Sequence[str], Edition], list[Any]]
) -> list[tuple[str, Sequence[Any]]]:
    """Return the answers of all editions about the expressions that get the same ones when asked twice."""
    once, again = ([answers_of(expressions, edition) for edition in editions] for _ in range(2))
    rows = zip(expressions, zip(*once, strict=True), zip(*again, strict=True), strict=True)
    return [(expression, first) for expression, first, second in rows if first == second]


def changed() -> list[str]:
    """Return the expressions on which the oracle no longer answers as recorded."""
    found = []
    for edition in SELECTOR_EDITIONS:
        recorded = list(recordings.read(recordings.SELECTORS, str(edition)))
        theirs = verdicts_of([expression for expression, _ in recorded], edition)
        rows = zip(recorded, theirs, strict=True)
        found += [f"{edition}: {expression}" for (expression, before), now in rows if before != now]
    return found
