"""Terms: literals, lists, maps, messages and the arguments of calls.

In: a cursor at the first token of a term. Out: its node, or a recorded fault.

Source: the CEL grammar, and the faults of cel-go's parser.
"""

from __future__ import annotations

from dra_driver.selectors.syntax.cursor import Cursor
from dra_driver.selectors.syntax.literals import BadLiteral, read_bytes, read_double, read_int, read_string, read_uint
from dra_driver.selectors.syntax.nodes import (
    Entry,
    ListLiteral,
    Literal,
    MapLiteral,
    Message,
    Node,
)
from dra_driver.selectors.syntax.source import SyntaxFault


class Terms(Cursor):
    """The part of the parser that reads terms and arguments. The parser itself supplies `_expr`."""

    __slots__ = ()

    def _expr(self) -> Node:
        """Parse an expression."""
        raise NotImplementedError

    def _number(self, offset: int, *, negative: bool) -> Node:
        kind, text, _ = self._advance()
        try:
            if kind == "int":
                return Literal(read_int(text, negative=negative), offset)
            if kind == "uint":
                return Literal(read_uint(text), offset)
            return Literal(read_double(text, negative=negative), offset)
        except BadLiteral as bad:
            self.faults.append(SyntaxFault(offset, str(bad)))
            return Literal(0, offset)

    def _text(self) -> Node:
        kind, text, offset = self._advance()
        try:
            return Literal(read_string(text) if kind == "string" else read_bytes(text), offset)
        except BadLiteral as bad:
            self.faults.append(SyntaxFault(offset, str(bad)))
            return Literal("", offset)

    def _list(self) -> Node:
        offset = self._advance()[2]
        elements: list[Node] = []
        optional: set[int] = set()
        visits = 0
        more = self._kind not in {"]", ","}
        while more:
            if self._optional_mark():
                optional.add(len(elements))
            element = self._expr()
            visits = max(visits, element.visits)
            elements.append(element)
            more = self._comma("]")
        self._close("]")
        return ListLiteral(elements, frozenset(optional), offset, visits)

    def _map(self) -> Node:
        offset = self._advance()[2]
        entries: list[Entry] = []
        visits = 0
        more = self._kind not in {"}", ","}
        while more:
            optional = self._optional_mark()
            key = self._expr()
            colon = self._expect(":")[2]
            value = self._expr()
            visits = max(visits, key.visits, value.visits)
            entries.append(Entry(key, "", value, colon, optional=optional))
            more = self._comma("}")
        self._close("}")
        return MapLiteral(entries, offset, visits)

    def _message(self, dot: str) -> Node:
        name = dot + self._advance()[1]
        while self._kind == ".":
            self._advance()
            name += "." + self._advance()[1]
        offset = self._expect("{")[2]
        entries: list[Entry] = []
        visits = 0
        more = self._kind not in {"}", ","}
        while more:
            optional = self._optional_mark()
            if self._kind not in {"ident", "quoted"}:
                self._fail("mismatched", "{'}', ',', '?', IDENTIFIER, ESC_IDENTIFIER}")
            field = self._field_name()
            colon = self._expect(":")[2]
            value = self._expr()
            visits = max(visits, value.visits)
            entries.append(Entry(None, field, value, colon, optional=optional))
            more = self._comma("}")
        self._close("}")
        return Message(name, entries, offset, visits)

    def _arguments(self) -> list[Node]:
        """Parse the arguments and the closing parenthesis."""
        args: list[Node] = []
        if self._kind != ")":
            args.append(self._expr())
            while self._kind == ",":
                self._advance()
                args.append(self._expr())
        if self._kind != ")":
            self._fail("mismatched", "{')', ','}")
        self._advance()
        return args

    def _optional_mark(self) -> bool:
        if self._kind == "?":
            self._advance()
            return True
        return False

    def _comma(self, closing: str) -> bool:
        """Skip a comma that is followed by another element."""
        if self._kind == "," and self._tokens[self._at + 1][0] != closing:
            self._advance()
            return True
        return False

    def _close(self, closing: str) -> None:
        if self._kind == ",":
            self._advance()
        if self._kind != closing:
            self._fail("mismatched", f"{{'{closing}', ','}}")
        self._advance()
