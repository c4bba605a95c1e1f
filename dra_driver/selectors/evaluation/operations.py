"""Operations: calls whose operands are all evaluated.

In: a call and the values of its operands. Out: its value. `calls.py` computes the same in the quick evaluator.
"""

from __future__ import annotations

from typing import Any

from dra_driver.selectors.evaluation.program import Program
from dra_driver.selectors.library.functions import FUNCTIONS
from dra_driver.selectors.syntax.nodes import Call
from dra_driver.selectors.values.arithmetic import OPERATORS, negate, refuse
from dra_driver.selectors.values.construction import insert
from dra_driver.selectors.values.equality import NO_SUCH_OVERLOAD, compare, contains, equal, is_equal
from dra_driver.selectors.values.values import CelError, TypeValue

_ORDERS = {
    "_<_": lambda order: order < 0,
    "_<=_": lambda order: order <= 0,
    "_>_": lambda order: order > 0,
    "_>=_": lambda order: order >= 0,
}


def apply(program: Program, node: Call, values: list[Any]) -> Any:
    """Return the value of a call, given those of its operands. Raises: CelError."""
    function = node.function
    table = OPERATORS.get(function)
    if table is not None:
        operation = table.get((type(values[0]), type(values[1])))
        if operation is None:
            raise refuse(function, values[0])
        return operation(values[0], values[1])
    order = _ORDERS.get(function)
    if order is not None:
        return order(compare(values[0], values[1], function))
    if function == "_==_":
        return equal(values[0], values[1])
    if function == "_!=_":
        return not is_equal(values[0], values[1])
    if function == "@in":
        return contains(values[1], values[0])
    if function == "!_":
        if type(values[0]) is not bool:
            raise CelError(NO_SUCH_OVERLOAD)
        return not values[0]
    if function == "-_":
        return negate(values[0])
    if function == "cel.@mapInsert":
        return insert(*values)
    pattern = program.patterns.get(node)
    if pattern is not None:
        if type(values[0]) is TypeValue and len(values) == 2:
            values = [values[0].name, values[1]]  # as in `calls.py`
        return FUNCTIONS[function](*values) if type(values[0]) is str else _refuse_pattern()
    return program.functions[node](*values)


def _refuse_pattern() -> Any:
    raise CelError(NO_SUCH_OVERLOAD)
