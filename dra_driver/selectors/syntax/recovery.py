"""Recovery: what kind of node an unfinished argument would have been.

In: the tokens of an argument that a syntax error cut short. Out: the offset of its outermost node, where the server
reports that it is not a field selection; None if it may have been one. Only the position matters, so no tree is built.

Source: the operator precedence of the CEL grammar.
"""

from __future__ import annotations

from dra_driver.selectors.syntax.lexer import Token

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
