"""Remedies: what to write instead of an expression that does not mean what its author wanted.

In: an expression, the declarations, the names and values of devices. Out: a `Remedy`: a sentence for each mistake, and
the expression without the mistakes, if that compiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dra_driver.selectors.checking.checker import check
from dra_driver.selectors.checking.declarations import Declarations
from dra_driver.selectors.remedies.mistake import Mistake, WrittenExpression
from dra_driver.selectors.remedies.names import KnownNames
from dra_driver.selectors.remedies.operators import operator_mistakes
from dra_driver.selectors.remedies.places import place_mistakes
from dra_driver.selectors.remedies.spelling import spelling_mistakes
from dra_driver.selectors.remedies.values import value_mistakes
from dra_driver.selectors.syntax.depth import room_for
from dra_driver.selectors.syntax.parser import parse
from dra_driver.selectors.values.cancellation import check_cancelled

_MAX_ROUNDS = 16
_MAX_CHARACTERS = 10_240  # the API server refuses longer expressions anyway
_FRAMES = 40_000
_SHALLOW = 200  # characters


@dataclass(frozen=True, slots=True)
class Remedy:
    """What is wrong, a sentence each, and the better expression; "" where there is none that compiles."""

    sentences: tuple[str, ...]
    better: str


def remedy(
    expression: str, declarations: Declarations, names: KnownNames, compiles: Callable[[str], bool]
) -> Remedy | None:
    """Return the remedy for an expression, or None if no rule here finds the mistake."""
    text, sentences, seen = expression, [], {expression}
    for _ in range(_MAX_ROUNDS):
        check_cancelled()
        mistake = next((one for one in mistakes(text, declarations, names) if one.text not in seen), None)
        if mistake is None:
            break
        text = mistake.text
        seen.add(text)
        sentences.append(mistake.message)
    if not sentences:
        return None
    return Remedy(tuple(dict.fromkeys(sentences)), text if compiles(text) else "")


def mistakes(text: str, declarations: Declarations, names: KnownNames) -> Iterator[Mistake]:
    """Yield the mistakes of an expression; if it can't be parsed, only those of spelling."""
    if len(text) > _MAX_CHARACTERS:
        return
    with room_for(_FRAMES if len(text) > _SHALLOW else 0):
        root, _ = parse(text, declarations.macros, quotes_fields=declarations.quotes_fields)
        if root is None:
            found = list(spelling_mistakes(text))
        else:
            check(root, declarations)
            found = list(mistakes_of(WrittenExpression(text, root, names)))
    yield from found


def mistakes_of(written: WrittenExpression) -> Iterator[Mistake]:
    """Yield the mistakes in a tree."""
    yield from place_mistakes(written)
    yield from operator_mistakes(written)
    yield from value_mistakes(written)
