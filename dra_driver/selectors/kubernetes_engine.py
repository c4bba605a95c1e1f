"""The engine that decides: it compiles DRA selectors as one Kubernetes version does.

In: expressions. Out: `KubernetesSelector`s with type, cost and admission verdict, or compile errors with the server's
texts. It reads no files but its own tables.

Source: Kubernetes, package dynamic-resource-allocation/cel; API validation of selectors (length, cost).
"""

from __future__ import annotations

from collections.abc import Mapping

from dra_driver.model.limits import CEL_COST, CEL_EXPRESSION_BYTES
from dra_driver.selectors.checking.checker import check
from dra_driver.selectors.checking.declarations import Declarations, declare
from dra_driver.selectors.checking.validators import CompilerPanic, validate
from dra_driver.selectors.engine import CompileErrorKind, Environment, SelectorCompileError
from dra_driver.selectors.evaluation.program import BadProgram, construct
from dra_driver.selectors.kubernetes_selector import KubernetesSelector
from dra_driver.selectors.syntax.depth import room_for
from dra_driver.selectors.syntax.nodes import Node
from dra_driver.selectors.syntax.parser import parse
from dra_driver.selectors.syntax.source import ExpressionText, SyntaxFault
from dra_driver.selectors.values.cancellation import check_cancelled
from dra_driver.selectors.values.work import begin_work

_SHALLOW = 200  # characters; a shorter expression can't nest so deeply that it needs more stack
_FRAMES_PER_CHARACTER = 8
_MAX_FRAMES = 40_000


def _frames(expression: str) -> int:
    return 0 if len(expression) <= _SHALLOW else min(len(expression) * _FRAMES_PER_CHARACTER, _MAX_FRAMES)


class KubernetesEngine:
    """Compiles selectors for one version and one set of feature gates."""

    name = "kubernetes"
    caveat = None

    def __init__(self, kubernetes: str = "1.35", *, gates: Mapping[str, bool] | None = None) -> None:
        self._declarations = {environment: declare(kubernetes, gates, environment) for environment in ("stored", "new")}

    @property
    def declarations(self) -> Declarations:
        """The names, functions and types that stored expressions can refer to."""
        return self._declarations["stored"]

    def compile(self, expression: str, *, environment: Environment = "stored") -> KubernetesSelector:
        """Compile one expression; equal arguments give equal selectors.

        Args:
            expression: the CEL text.
            environment: "stored" for what the scheduler evaluates, "new" for what a new or changed object may contain.

        Raises:
            SelectorCompileError: The expression does not compile; the text is Kubernetes' own.
        """
        check_cancelled()
        begin_work()
        declarations = self._declarations[environment]
        with room_for(_frames(expression)):
            root = _checked(expression, declarations)
            try:
                program = construct(root, declarations.kubernetes)
            except CompilerPanic as panic:
                raise _crashed(panic, "bytes as the key of a map of constants. Nothing finds bytes in a map") from panic
            except BadProgram as bad:
                text = f"program instantiation failed: {bad}"
                raise SelectorCompileError(CompileErrorKind.INSTANTIATION, text) from bad
            return KubernetesSelector(expression, declarations, program, self.is_admissible)

    def is_admissible(self, expression: str) -> bool:
        """Return whether the API server accepts the expression in a new object."""
        if len(expression.encode("utf-8", "surrogatepass")) > CEL_EXPRESSION_BYTES:
            return False
        try:
            return self.compile(expression, environment="new").max_cost <= CEL_COST
        except SelectorCompileError:
            return False


def _checked(expression: str, declarations: Declarations) -> Node:
    """Parse an expression, check its types and validate its literals."""
    root, faults = parse(expression, declarations.macros, quotes_fields=declarations.quotes_fields)
    if root is not None:
        check_cancelled()
        faults = check(root, declarations)
        if not faults:
            faults = _validated(root)
    if root is None or faults:
        raise _refused(expression, faults)
    if root.type not in declarations.result_types:
        text = f"must evaluate to bool or the unknown type, not {root.type.long()}"
        raise SelectorCompileError(CompileErrorKind.RESULT_TYPE, text)
    return root


def _validated(root: Node) -> list[SyntaxFault]:
    try:
        return validate(root)
    except CompilerPanic as panic:
        why = "an optional entry ([?x], {?k: x}) of unknown type"
        raise _crashed(
            panic, f"{why}. The API server does not accept it; write the entry with optional.of() or orValue()"
        ) from panic


def _crashed(panic: CompilerPanic, why: str) -> SelectorCompileError:
    text = f"Kubernetes' own compiler crashes on this expression (panic: {panic}): {why}"
    return SelectorCompileError(CompileErrorKind.PANIC, text)


def _refused(expression: str, faults: list[SyntaxFault]) -> SelectorCompileError:
    report, position = ExpressionText(expression).report(faults)
    grammar = any(fault.message.startswith("Syntax error") for fault in faults)
    kind = CompileErrorKind.SYNTAX if grammar else CompileErrorKind.TYPE
    return SelectorCompileError(kind, f"compilation failed: {report}", position=position)
