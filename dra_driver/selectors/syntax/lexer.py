"""From text to tokens.

In: the text. Out: tokens as tuples (kind, text, offset), the last of kind EOF, and the faults: stretches that are not
tokens. The kind of a keyword or punctuation mark is the mark itself. Nothing is unescaped here.

Source: the token rules of the CEL grammar as cel-go has them (longest match; an unrecognisable run is dropped).
"""

from __future__ import annotations

import re

from dra_driver.selectors.syntax.source import SyntaxFault

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
