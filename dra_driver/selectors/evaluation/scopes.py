"""Scopes: the local variables of comprehensions, and the loops that set them.

In: a comprehension. Out: its value. A binding is evaluated on first use, and an accumulator may hold the error with
which its step ended.

Source: cel-go's interpreter, with its lazy accumulator.
"""

from __future__ import annotations

from typing import Any

from dra_driver.selectors.library.access import (
    bound,
    iterate,
    iterate_pairs,
)
from dra_driver.selectors.syntax.macros import BINDINGS
from dra_driver.selectors.syntax.nodes import Comprehension, Node
from dra_driver.selectors.values.containers import CelMap
from dra_driver.selectors.values.values import CelError

_UNSET = object()


class Variable:
    """A local variable that is initialised on first use, or that holds the error with which its step ended."""

    __slots__ = ("init", "scope", "value")

    def __init__(self, init: Node | None, scope: dict[str, Variable], value: Any = _UNSET) -> None:
        self.init = init
        self.scope = scope
        self.value = value


class Scopes:
    """The part of the interpreter that handles local variables. The interpreter itself supplies `eval`."""

    __slots__ = ("_scope",)

    def __init__(self) -> None:
        self._scope: dict[str, Variable] = {}

    def eval(self, node: Node) -> Any:
        """Evaluate a node."""
        raise NotImplementedError

    def variable(self, found: Variable) -> Any:
        """Return the value of a local variable. Raises: the CelError that it holds."""
        if found.value is _UNSET:
            assert found.init is not None  # noqa: S101
            outer, self._scope = self._scope, found.scope
            try:
                found.value = bound(self.eval(found.init))
            except CelError as error:
                found.value = error
            finally:
                self._scope = outer
        if type(found.value) is CelError:
            raise found.value.with_traceback(None)  # each raise adds a line to it
        return found.value

    def comprehension(self, node: Comprehension) -> Any:
        """Evaluate a binding or a loop."""
        outer = self._scope
        accu = Variable(node.init, outer)
        if node.macro in BINDINGS:
            self._scope = {**outer, node.accu: accu}
            try:
                return self.eval(node.result)
            finally:
                self._scope = outer
        return self._fold(node, outer, accu)

    def _fold(self, node: Comprehension, outer: dict[str, Variable], accu: Variable) -> Any:
        holder = self.eval(node.range)
        pairs = iterate_pairs(holder) if node.var2 else [(element, None) for element in iterate(holder)]
        accu.value = self.eval(node.init)
        if type(accu.value) is CelMap:
            accu.value = CelMap(dict(accu.value.items))  # never change a constant
        scope = {**outer, node.accu: accu}
        first, second = Variable(None, outer), Variable(None, outer)
        inner = {**scope, node.var: first}
        if node.var2:
            inner[node.var2] = second
        try:
            for key, value in pairs:
                first.value, second.value = key, value
                self._scope = inner
                if not self._goes_on(node.cond):
                    break
                try:
                    accu.value = self.eval(node.step)
                except CelError as error:
                    accu.value = error
            self._scope = scope
            return self.eval(node.result)
        finally:
            self._scope = outer

    def _goes_on(self, condition: Node) -> bool:
        try:
            return self.eval(condition) is not False
        except CelError:
            return True
