"""The words of the grammar: operators and their function names, reserved words, and what may begin an operand.

Source: the CEL grammar as cel-go has it.
"""

from __future__ import annotations

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
