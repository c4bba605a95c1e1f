"""A cursor over tokens, which also records faults.

In: tokens. Out: the next token, or a recorded fault and a `Stop`. It knows no grammar.
"""

from __future__ import annotations

from dra_driver.selectors.syntax.lexer import Token
from dra_driver.selectors.syntax.nodes import Node
from dra_driver.selectors.syntax.source import NOWHERE, SyntaxFault

MAX_NESTING = 250  # levels of one grammar rule on the path from the root


class Stop(Exception):
    """Parsing can't go on; the fault has been recorded."""


class Cursor:
    """The position in the tokens."""

    __slots__ = ("_at", "_kind", "_quotes_fields", "_tokens", "faults")

    def __init__(self, tokens: list[Token], faults: list[SyntaxFault], *, quotes_fields: bool) -> None:
        self._quotes_fields = quotes_fields
        self._tokens = tokens
        self._at = 0
        self._kind = tokens[0][0]
        self.faults = faults

    def _advance(self) -> Token:
        token = self._tokens[self._at]
        self._at += 1
        self._kind = self._tokens[self._at][0]
        return token

    def _expect(self, kind: str) -> Token:
        if self._kind != kind:
            self._fail("mismatched", f"'{kind}'")
        return self._advance()

    def _fail(self, verb: str, expected: str) -> None:
        _, text, offset = self._tokens[self._at]
        self.faults.append(SyntaxFault(offset, f"Syntax error: {verb} input '{text}' expecting {expected}"))
        raise Stop

    def _field_name(self) -> str:
        """Return the name of the field that comes next, written plainly or between backticks."""
        kind, text, offset = self._advance()
        if kind != "quoted":
            return text
        if self._quotes_fields:
            return text[1:-1]
        self.faults.append(SyntaxFault(offset, "unsupported syntax: '`'"))
        return ""

    def _no_alternative(self, seen: str) -> None:
        self.faults.append(
            SyntaxFault(self._tokens[self._at][2], f"Syntax error: no viable alternative at input '{seen}'"),
        )
        raise Stop

    def _span(self, node: Node, start: int) -> Node:
        """Record the text of a node: from `start` to the end of the last token taken."""
        node.start = start
        _, text, offset = self._tokens[self._at - 1]
        node.end = offset + len(text)
        return node

    def _too_deep(self) -> None:
        self.faults[:] = [SyntaxFault(NOWHERE, f"expression recursion limit exceeded: {MAX_NESTING}")]
        raise Stop

    def _is_message(self) -> bool:
        at, tokens = self._at + 1, self._tokens
        while tokens[at][0] == "." and tokens[at + 1][0] == "ident":
            at += 2
        return tokens[at][0] == "{"
