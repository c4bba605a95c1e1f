"""The questions about selectors, and what Kubernetes' own compiler answers.

In: expressions. Out: verdicts of each edition; only those that are the same when asked twice, since some errors depend
on the order of a Go map.
"""

from __future__ import annotations

from collections.abc import Sequence

from cluster.oracle import recordings
from cluster.oracle.editions import SELECTOR_EDITIONS, Edition
from cluster.oracle.expressions import random_expressions
from cluster.oracle.ours import Verdict, their_selector_verdict
from cluster.oracle.program import ask

SEED, COUNT = 20, 1500
WRITTEN = recordings.FOLDER / "expressions.txt"


def written_expressions() -> list[str]:
    """Return the expressions that were written by hand."""
    lines = WRITTEN.read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def verdicts_of(expressions: Sequence[str], edition: Edition) -> list[Verdict]:
    """Return Kubernetes' verdict on each expression."""
    answers = ask(edition.kubernetes, "selectors", edition.header(), list(expressions))
    return [their_selector_verdict(answer) for answer in answers]


def record() -> None:
    """Record all editions."""
    expressions = [*written_expressions(), *random_expressions(SEED, COUNT)]
    columns = [verdicts_of(expressions, edition) for edition in SELECTOR_EDITIONS]
    again = [verdicts_of(expressions, edition) for edition in SELECTOR_EDITIONS]
    rows = list(zip(expressions, zip(*columns, strict=True), zip(*again, strict=True), strict=True))
    steady = [(expression, first) for expression, first, second in rows if first == second]
    recordings.write(recordings.SELECTORS, [str(edition) for edition in SELECTOR_EDITIONS], steady)


def changed() -> list[str]:
    """Return the expressions on which the oracle no longer answers as recorded."""
    found = []
    for edition in SELECTOR_EDITIONS:
        recorded = list(recordings.read(recordings.SELECTORS, str(edition)))
        theirs = verdicts_of([expression for expression, _ in recorded], edition)
        rows = zip(recorded, theirs, strict=True)
        found += [f"{edition}: {expression}" for (expression, before), now in rows if before != now]
    return found
