"""The meaning of literal tokens.

In: the text of one token. Out: a run-time value. It does not find tokens.

Source: the CEL language definition (escapes, number ranges) as cel-go's parser applies it.
"""

from __future__ import annotations

import math
import re
import sys
import threading
from bisect import bisect_right
from dataclasses import dataclass
from types import TracebackType

from dra_driver.selectors.parse.tree import Node
from dra_driver.selectors.values.values import Uint

_INT64_MIN, _INT64_MAX, _UINT64_MAX = -(2**63), 2**63 - 1, 2**64 - 1
_MAX_DIGITS = 30  # longer digit strings are read only after their leading zeros are removed
_SIMPLE = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ESCAPES = re.compile(
    r"\\(?:[xX](?P<byte>[0-9a-fA-F]{2})|u(?P<short>[0-9a-fA-F]{4})|U(?P<long>[0-9a-fA-F]{8})"
    r"|(?P<octal>[0-3][0-7]{2})|(?P<char>.))",
    re.DOTALL,
)


class BadLiteral(Exception):
    """The token has the right shape but no valid value."""


def read_int(text: str, *, negative: bool) -> int:
    """Read an int literal without its sign."""
    value = _magnitude(text)
    value = -value if negative else value
    if not _INT64_MIN <= value <= _INT64_MAX:
        raise BadLiteral("invalid int literal")
    return value


def read_uint(text: str) -> Uint:
    """Read a uint literal with its suffix."""
    value = _magnitude(text[:-1])
    if value > _UINT64_MAX:
        raise BadLiteral("invalid uint literal")
    return Uint(value)


def read_double(text: str, *, negative: bool) -> float:
    """Read a double literal."""
    value = float(text)
    if math.isinf(value):
        raise BadLiteral("invalid double literal")
    return -value if negative else value


def read_string(token: str) -> str:
    """Read a string literal with its quotes and prefix."""
    body, raw = _body(token)
    if raw or "\\" not in body:
        return body
    return _ESCAPES.sub(_character, body)


def read_bytes(token: str) -> bytes:
    """Read a bytes literal with its prefix; text that is not escaped counts as UTF-8."""
    body, raw = _body(token[1:])
    if raw or "\\" not in body:
        return body.encode("utf-8", "surrogatepass")
    parts, last = [], 0
    for found in _ESCAPES.finditer(body):
        parts.append(body[last : found.start()].encode("utf-8", "surrogatepass"))
        parts.append(_byte(found))
        last = found.end()
    parts.append(body[last:].encode("utf-8", "surrogatepass"))
    return b"".join(parts)


def _magnitude(text: str) -> int:
    hexadecimal = text.startswith("0x")
    digits = (text[2:] if hexadecimal else text).lstrip("0") or "0"
    if len(digits) > _MAX_DIGITS:
        return _UINT64_MAX + 1
    return int(digits, 16 if hexadecimal else 10)


def _body(token: str) -> tuple[str, bool]:
    raw = token[0] in "rR"
    token = token[1:] if raw else token
    width = 3 if len(token) >= 6 and token[:3] in {'"""', "'''"} else 1
    body = token[width:-width]
    if "\r" in body:
        body = body.replace("\r\n", "\n").replace("\r", "\n")
    return body, raw


def _character(found: re.Match[str]) -> str:
    if found["char"] is not None:
        return _SIMPLE.get(found["char"], found["char"])
    if found["octal"]:
        return chr(int(found["octal"], 8))
    code = int(found["byte"] or found["short"] or found["long"], 16)
    if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
        raise BadLiteral("invalid unicode code point")
    return chr(code)


def _byte(found: re.Match[str]) -> bytes:
    if found["char"] is not None:
        return _SIMPLE.get(found["char"], found["char"]).encode()
    if found["octal"]:
        return bytes([int(found["octal"], 8)])
    if found["byte"]:
        return bytes([int(found["byte"], 16)])
    raise BadLiteral("unable to unescape string")


# The text of an expression, and the faults found in it.

NOWHERE = -1  # the offset of a fault that concerns the whole text
_MAX_FAULTS = 100


@dataclass(frozen=True, slots=True)
class SyntaxFault:
    """One fault: its offset (or NOWHERE) and its message."""

    offset: int
    message: str


class ExpressionText:
    """The text of one expression."""

    __slots__ = ("_starts", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._starts: list[int] | None = None

    def position(self, offset: int) -> tuple[int, int]:
        """Return the line and the column of an offset, both from 1."""
        if offset == NOWHERE:
            return -1, 0
        if not self.text:
            return 1, 0
        starts = self._line_starts()
        line = bisect_right(starts, offset)
        return line, offset - starts[line - 1] + 1

    def report(self, faults: list[SyntaxFault]) -> tuple[str, tuple[int, int]]:
        """Format faults as the compiler prints them; return the text and the position of the first fault."""
        located = sorted(((self.position(fault.offset), fault.message) for fault in faults), key=lambda one: one[0])
        kept = located[:_MAX_FAULTS]
        blocks = [self._block(position, message) for position, message in kept]
        if len(located) > len(kept):
            blocks.append(f"{len(located) - len(kept)} more errors were truncated")
        return "\n".join(blocks), located[0][0]

    def _line_starts(self) -> list[int]:
        if self._starts is None:
            starts = [0]
            found = self.text.find("\n")
            while found >= 0:
                starts.append(found + 1)
                found = self.text.find("\n", found + 1)
            self._starts = starts
        return self._starts

    def _block(self, position: tuple[int, int], message: str) -> str:
        line, column = position
        head = f"ERROR: <input>:{line}:{column}: {message}"
        if line < 1 or not self.text:
            return head
        starts = self._line_starts()
        end = starts[line] - 1 if line < len(starts) else len(self.text)
        shown = self.text[starts[line - 1] : end].replace("\t", " ")
        before = "".join("．" if ord(char) > 127 else "." for char in shown[: column - 1])  # noqa: RUF001
        marked = shown[column - 1 : column]
        return f"{head}\n | {shown}\n | {before}{'＾' if marked and ord(marked) > 127 else '^'}"  # noqa: RUF001


# From text to tokens.

Token = tuple[str, str, int]

EOF = "<EOF>"

_ESCAPE = r"""\\(?:[abfnrtv"'`\\?]|[xX][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-3][0-7]{2})"""
_PLAIN = rf'''"""(?>(?:[^\\"]++|"(?!"")|{_ESCAPE})*)"""|\'\'\'(?>(?:[^\\']++|'(?!\'\')|{_ESCAPE})*)\'\'\''''
_SHORT = rf"""|"(?>(?:[^\\"\n\r]++|{_ESCAPE})*)"|'(?>(?:[^\\'\n\r]++|{_ESCAPE})*)'"""
_RAW = r"""[rR](?:\"{3}(?>(?:[^"]++|"(?!""))*)\"{3}|'{3}(?>(?:[^']++|'(?!''))*)'{3}|"[^"\n\r]*+"|'[^'\n\r]*+')"""
_STRING = f"(?:{_PLAIN}{_SHORT}|{_RAW})"

_TOKEN = re.compile(
    rf"""
    (?P<skip>(?>(?:[\t\ \r\n\f]++|//[^\n]*+)+))
    |(?P<bytes>[bB]{_STRING})
    |(?P<string>{_STRING})
    |(?P<ident>[a-zA-Z_][a-zA-Z0-9_]*+)
    |(?P<float>[0-9]++\.[0-9]++(?:[eE][+-]?[0-9]++)?|[0-9]++[eE][+-]?[0-9]++|\.[0-9]++(?:[eE][+-]?[0-9]++)?)
    |(?P<uint>(?:0x[0-9a-fA-F]++|[0-9]++)[uU])
    |(?P<int>0x[0-9a-fA-F]++|[0-9]++)
    |(?P<mark>==|!=|<=|>=|&&|\|\||[\[\]{{}}().,\-!?:+*/%<>])
    |(?P<quoted>`[a-zA-Z0-9_.\-/\ ]++`)
    """,
    re.VERBOSE,
)
_KEYWORDS = frozenset({"in", "true", "false", "null"})
# What the server's lexer has consumed when it gives up; it also drops the character after that.
_UNFINISHED = re.compile(
    rf"""
    "(?>(?:[^\\"\n\r]++|{_ESCAPE})*)(?:\\(?:[xX][0-9a-fA-F]?|u[0-9a-fA-F]{{0,3}}|U[0-9a-fA-F]{{0,7}}|[0-3][0-7]?)?)?
    |'(?>(?:[^\\'\n\r]++|{_ESCAPE})*)(?:\\(?:[xX][0-9a-fA-F]?|u[0-9a-fA-F]{{0,3}}|U[0-9a-fA-F]{{0,7}}|[0-3][0-7]?)?)?
    |`[a-zA-Z0-9_.\-/\ ]*+
    |[=&|]
    """,
    re.VERBOSE,
)


def tokenize(text: str) -> tuple[list[Token], list[SyntaxFault]]:
    """Split the text into tokens and faults, in time linear in the length of the text."""
    tokens: list[Token] = []
    faults: list[SyntaxFault] = []
    append, match, position, end = tokens.append, _TOKEN.match, 0, len(text)
    while position < end:
        found = match(text, position)
        if found is None:
            stop = _give_up(text, position)
            faults.append(SyntaxFault(position, f"Syntax error: token recognition error at: '{text[position:stop]}'"))
            position = stop
            continue
        kind = found.lastgroup
        start, position = position, found.end()
        if kind == "skip":
            continue
        word = text[start:position]
        if kind == "mark" or (kind == "ident" and word in _KEYWORDS):
            append((word, word, start))
        else:
            append((kind or "", word, start))
    append((EOF, EOF, end))
    return tokens, faults


def _give_up(text: str, position: int) -> int:
    """Find the end of an unrecognisable run."""
    begun = _UNFINISHED.match(text, position)
    return min((begun.end() if begun else position) + 1, len(text))


# A cursor over tokens, which also records faults.

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


# Room on the stack for deep expressions.

_SMALL = 300  # frames that always fit, however deep the caller is
_MARGIN = 2000  # frames for the caller and for the leaves


class _Shared:
    """The number of calls that need the raised limit, and the limit before the first of them."""

    lock = threading.Lock()
    holders = 0
    before = 0


def needs_room(frames: int) -> bool:
    """Return whether this many frames might exceed the default limit."""
    return frames > _SMALL


class room_for:  # noqa: N801  (reads as a statement: `with room_for(frames)`)
    """Make room for this many frames while the block runs."""

    __slots__ = ("_frames",)

    def __init__(self, frames: int) -> None:
        self._frames = frames

    def __enter__(self) -> None:
        if not needs_room(self._frames):
            return
        with _Shared.lock:
            if _Shared.holders == 0:
                _Shared.before = sys.getrecursionlimit()
            _Shared.holders += 1
            sys.setrecursionlimit(max(sys.getrecursionlimit(), _Shared.before + _MARGIN + self._frames))

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not needs_room(self._frames):
            return
        with _Shared.lock:
            _Shared.holders -= 1
            if _Shared.holders == 0:
                sys.setrecursionlimit(_Shared.before)


# Recovery: what kind of node an unfinished argument would have been.

_LOOSENESS = {"?": 1, "||": 2, "&&": 3, "<": 4, "<=": 4, ">": 4, ">=": 4, "==": 4, "!=": 4, "in": 4}
_LOOSENESS |= {"+": 5, "-": 5, "*": 6, "/": 6, "%": 6}
_POSTFIX, _OPERAND = 8, 9
_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")


def find_outermost(tokens: list[Token]) -> int | None:
    """Find the outermost node of an unfinished argument."""
    binding, top, selects = _OPERAND + 1, None, False
    depth, after_operand = 0, False
    for position, (kind, _, offset) in enumerate(tokens):
        if depth == 0 and kind == ",":
            return None  # with more than one argument it is not a macro call
        if depth == 0:
            following = tokens[position + 1][0] if position + 1 < len(tokens) else ""
            found = _binding(kind, following, after_operand=after_operand)
            if found is not None and found <= binding:
                binding, top = found, offset
                selects = kind == "." and following == "ident" and after_operand
        depth += (kind in _OPENING) - (kind in _CLOSING)
        after_operand = kind in _CLOSING or kind in {"ident", "int", "uint", "float", "string", "bytes"}
        after_operand = after_operand or kind in {"true", "false", "null"}
    return None if selects else top


def _binding(kind: str, following: str, *, after_operand: bool) -> int | None:
    """Return how tightly the node of a token binds, or None for a token that does not make a node."""
    if after_operand:
        if kind == ".":
            return _POSTFIX if following in {"ident", "?"} else None
        return _POSTFIX if kind in _OPENING else _LOOSENESS.get(kind)
    if kind in {"!", "-"}:
        return _POSTFIX - 1
    return _OPERAND if kind not in _LOOSENESS and kind not in _CLOSING and kind != "(" else None


# The words of the grammar: operators and their function names, reserved words, and what may begin an operand.

# ruff: noqa: SIM905  (names read better as words than as a column of quotes)

RESERVED = frozenset(
    "as break const continue else for function if import let loop package namespace return var void while".split()
)
RELATIONS = {"<": "_<_", "<=": "_<=_", ">": "_>_", ">=": "_>=_", "==": "_==_", "!=": "_!=_", "in": "@in"}
SUMS = {"+": "_+_", "-": "_-_"}
PRODUCTS = {"*": "_*_", "/": "_/_", "%": "_%_"}
OPERAND = (
    "{'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}"
)
CONSTANTS = {"true": True, "false": False, "null": None}
