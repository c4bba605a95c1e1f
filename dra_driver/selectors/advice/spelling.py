"""Operators and words of other languages, which CEL can't parse: `=`, `|`, `and`, `not`, curly quotes.

In: a text that is not CEL. Out: mistakes. String literals are never changed. The corrections are made in the text,
because there is no tree.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from dra_driver.selectors.advice.mistakes import Mistake

_RULE = "refused"
# All quantifiers are possessive, so that an unclosed text fails after one pass.
_STRINGS = {
    quote: re.compile(rf"{quote}(?>(?:[^\\\n{quote[0]}]++|\\.|{inside})*){quote}", re.DOTALL)
    for quote, inside in (
        ('"""', '\\n|"(?!"")'), ("'''", "\\n|'(?!'')"), ('"', "(?!)"), ("'", "(?!)"),
    )
}  # fmt: skip
_CURLY = str.maketrans(dict.fromkeys("\u201c\u201d\u201e\u00ab\u00bb", '"') | dict.fromkeys("\u2018\u2019\u201a", "'"))
_WORD = r"(?<![\w.`]){}(?![\w(`])"
# The pattern of what is written, what CEL has instead, and the message.
_OPERATORS: tuple[tuple[re.Pattern[str], str, str], ...] = (
    (re.compile(r"!==(?!=)"), "!=", "CEL has no operator !==: write !="),
    (re.compile(r"<>"), "!=", "CEL has no operator <>: write !="),
    (re.compile(r"===(?!=)"), "==", "CEL has no operator ===: write =="),
    (re.compile(r"=<"), "<=", "CEL has no operator =<: write <="),
    (re.compile(r"(?<![=!<>~])=(?![=~<])"), "==", "CEL has no operator =: write == to compare"),
    (re.compile(r"(?<!\|)\|(?!\|)"), "||", "CEL has no operator |: write || for or"),
    (re.compile(r"(?<!&)&(?!&)"), "&&", "CEL has no operator &: write && for and"),
    (re.compile(_WORD.format("(?:and|AND|And)")), "&&", "CEL has no operator `and`: write &&"),
    (re.compile(_WORD.format("(?:or|OR|Or)")), "||", "CEL has no operator `or`: write ||"),
)
_NOT_IN = re.compile(
    r"(?<![\w.`\]\x00])(?P<value>(?>(?:[\w.`\x00]++|\[[^\[\]]*+\])+))\s++not\s++in\s++(?P<list>\[[^\[\]]*+\]|[\w.\[\]\x00]++)"
)
_NOT = re.compile(r"(?<![\w.`])(?:not|NOT|Not)(?![\w`])\s*")
_LIKE = re.compile(r"(?<!\s)\s++(?:like|LIKE|contains|CONTAINS|=~|~=?)\s++(?P<text>\x00++)")
_AMOUNT = re.compile(r"(?<![\w.\x00])[0-9]++(?>(?:\.[0-9]++)?)[KMGTPE]i(?![\w\x00])")
_KEYED_TEST = re.compile(r"""has\((?P<map>device[^()]*)\[["'](?P<name>[A-Za-z_]\w*+)["']\]\)""")
_AND_OR = re.compile(r"&&|\|\||(?<=\s)(?:and|or)\b", re.IGNORECASE)
_OPEN = {"(": ")", "[": "]", "{": "}"}


def spelling_mistakes(text: str) -> Iterator[Mistake]:
    """Yield the spellings of other languages, each with the corrected text."""
    if (straight := text.translate(_CURLY)) != text:
        yield Mistake(_RULE, "a text needs straight quotes, not curly ones", "", straight)
    masked = _masked(text)
    if "{{" in masked:
        yield Mistake(_RULE, "this is a template: render it first (helm template), then check what it makes", "", "")
        return
    if masked.rstrip().endswith(";"):
        yield Mistake(_RULE, "an expression ends without a semicolon", "", text.rstrip().rstrip(";"))
    if re.match(r"\s*(if|case|switch|return|let|var)\b", masked):
        message = "CEL has expressions only: write CONDITION ? VALUE : OTHER, or join conditions with && and ||"
        yield Mistake(_RULE, message, "", "")
    if test := _KEYED_TEST.search(text):
        better = _with(text, [(*test.span(), f"has({test['map']}.{test['name']})")])
        yield Mistake(_RULE, "has() takes a field, not a key in brackets", "", better)
    for pattern, better, message in _OPERATORS:
        if found := list(pattern.finditer(masked)):
            yield Mistake(_RULE, message, "", _with(text, [(one.start(), one.end(), better) for one in found]))
    if found := list(_AMOUNT.finditer(masked)):
        edits = [
            (one.start(), one.end(), f'"{one[0]}"' if masked[: one.start()].endswith("quantity(") else _amount(one[0]))
            for one in found
        ]
        message = f"{found[0][0]} is not a number: write an amount as {_amount(found[0][0])}"
        yield Mistake(_RULE, message, "", _with(text, edits))
    yield from _negations(text, masked)
    if found := list(_LIKE.finditer(masked)):
        edits = [
            (one.start(), one.end(), f".contains({_pattern(text[one.start('text') : one.end()])})") for one in found
        ]
        yield Mistake(
            _RULE, "search a text with .contains(…), or with .matches(…) for a pattern", "", _with(text, edits)
        )
    yield from _unclosed(text, masked)


def _amount(written: str) -> str:
    return f'quantity("{written}")'


def _masked(text: str) -> str:
    """Return the text with NUL in the place of every character of a string literal."""
    pieces, position, unclosed = [], 0, set()
    while position < len(text):
        quote = next((one for one in _STRINGS if one not in unclosed and text.startswith(one, position)), "")
        found = _STRINGS[quote].match(text, position) if quote else None
        if quote and found is None:
            unclosed.add(quote)
            continue
        pieces.append("\x00" * len(found[0]) if found else text[position])
        position = found.end() if found else position + 1
    return "".join(pieces)


def _with(text: str, edits: list[tuple[int, int, str]]) -> str:
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def _pattern(literal: str) -> str:
    """Return the text of a LIKE without its wildcards at the ends."""
    return literal[0] + literal[1:-1].strip("%*") + literal[-1]


def _negations(text: str, masked: str) -> Iterator[Mistake]:
    if found := _NOT_IN.search(masked):
        inner = (
            f"!({text[found.start('value') : found.end('value')]} in {text[found.start('list') : found.end('list')]})"
        )
        yield Mistake(_RULE, "CEL has no operator `not in`: write !(… in …)", "", _with(text, [(*found.span(), inner)]))
    elif found := _NOT.search(masked):
        end = _end_of_clause(masked, found.end())
        clause = text[found.end() : end].rstrip()
        inner = f"!{clause if _is_enclosed(masked[found.end() : end].rstrip()) else f'({clause})'}"
        tail = " " if end < len(text) and masked[end] in "&|" else ""
        yield Mistake(
            _RULE, "CEL has no operator `not`: write !(…)", "", _with(text, [(found.start(), end, inner + tail)])
        )


def _is_enclosed(masked: str) -> bool:
    """Return whether one pair of brackets encloses the whole."""
    depth = 0
    for position, sign in enumerate(masked):
        depth += (sign == "(") - (sign == ")")
        if depth == 0:
            return sign == ")" and position == len(masked) - 1
    return False


def _end_of_clause(masked: str, start: int) -> int:
    """Return where the clause ends that begins at `start`: before && or ||, a closing bracket, or at the end."""
    depth = 0
    for position in range(start, len(masked)):
        sign = masked[position]
        if sign in _OPEN:
            depth += 1
        elif sign in ")]}":
            depth -= 1
        if depth < 0 or (depth == 0 and _AND_OR.match(masked, position)):
            return position
    return len(masked)


def _unclosed(text: str, masked: str) -> Iterator[Mistake]:
    """Report a text or bracket that is never closed, where closing it at the end is all that is missing."""
    for quote in ('"', "'"):
        if masked.count(quote) == 1:
            yield Mistake(_RULE, f"a text is not closed: {quote} is missing at its end", "", text + quote)
            return
    stack: list[str] = []
    for sign in masked:
        if sign in _OPEN:
            stack.append(_OPEN[sign])
        elif sign in ")]}" and (not stack or stack.pop() != sign):
            return
    if stack:
        closing = "".join(reversed(stack))
        yield Mistake(_RULE, f"a bracket is not closed: {closing} is missing at the end", "", text + closing)
