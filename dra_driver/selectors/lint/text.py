"""Rules that look at the expression: guards, comparisons, cost, names.

In: a selector. Out: findings, which are more precise if devices are given.

Source: Kubernetes API resource/v1 (limits of selectors); names that NVIDIA's driver stopped publishing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from dra_driver.model.limits import CEL_COST, CEL_EXPRESSION_BYTES
from dra_driver.selectors.engine import SelectorCompileError
from dra_driver.selectors.lint.bounds import reachable_bound
from dra_driver.selectors.lint.findings import LintFinding, LintSubject, outcomes
from dra_driver.selectors.lint.fleet import keeps_verdicts, recompiled
from dra_driver.selectors.lint.guards import clauses
from dra_driver.selectors.lint.versions import OPERATORS, version_findings, versions_among
from dra_driver.selectors.remedies.literal_texts import exponent_of
from dra_driver.selectors.remedies.mistake import place_of
from dra_driver.selectors.remedies.operators import operator_mistakes
from dra_driver.selectors.remedies.values import value_mistakes
from dra_driver.selectors.syntax.excerpts import all_nodes, replaced, text_of
from dra_driver.selectors.syntax.nodes import Call, Ident, Literal, Node, Select

CLOSE_TO_LIMIT = CEL_COST // 2
# Of a quantity's literal. From here on, Kubernetes takes milliseconds to compare it with an amount of memory; if the
# exponent is ten million, seconds. The cost of an expression does not include that.
MAX_EXPONENT = 100_000
_READERS = frozenset({"quantity", "isQuantity"})
_EQUALITY = frozenset({"_==_", "_!=_"})
_SHARED_DOMAINS = frozenset({"resource.kubernetes.io"})
# Attributes that drivers no longer publish, as domain/name, with what to do instead.
DEPRECATED: dict[str, str] = {
    "gpu.nvidia.com/index": "select by uuid, or by what the job needs",
    "gpu.intel.com/pciAddress": "use resource.kubernetes.io/pciBusID",
    "gpu.intel.com/pciRoot": "use resource.kubernetes.io/pcieRoot",
}


def text_findings(subject: LintSubject) -> Iterator[LintFinding]:
    """Apply the rules that need only the expression."""
    yield from _admission(subject)
    if subject.in_class and subject.is_first:
        yield from _driver_guard(subject)
    found = list(_comparisons(subject))
    yield from found
    yield from _enormous(subject)
    yield from _mistakes(subject, {finding.clause for finding in found})
    yield from _deprecated(subject)


def _admission(subject: LintSubject) -> Iterator[LintFinding]:
    """Report whether the API server would refuse the expression in a new object."""
    selector = subject.selector
    length = len(selector.expression.encode("utf-8", "surrogatepass"))
    if length > CEL_EXPRESSION_BYTES:
        yield LintFinding("refused", f"it has {length:,} bytes; at most {CEL_EXPRESSION_BYTES:,} are accepted")
    try:
        cost = subject.engine.compile(selector.expression, environment="new").max_cost
    except SelectorCompileError as error:
        first = error.text.splitlines()[0]
        yield LintFinding("refused", f"not accepted in a new object of Kubernetes {selector.kubernetes}: {first}")
        return
    if cost > CEL_COST:
        yield LintFinding(
            "cost-limit", f"the worst-case cost {_short(cost)} exceeds the limit of {CEL_COST:,}: it is refused"
        )
    elif cost > CLOSE_TO_LIMIT:
        share = 100 * cost // CEL_COST
        yield LintFinding("cost-limit", f"the worst-case cost {cost:,} is {share} % of the limit of {CEL_COST:,}")


def _short(cost: int) -> str:
    return f"{cost:,}" if cost < 10**9 else f"{float(cost):.1e}"


def _driver_guard(subject: LintSubject) -> Iterator[LintFinding]:
    """Report a class whose first clause does not compare the driver: its selectors see the devices of every driver."""
    root, expression = subject.selector.program.root, subject.selector.expression
    first = clauses(root)[0]
    if any(type(node) is Select and node.field == "driver" and _is_device(node.operand) for node in all_nodes(first)):
        return
    domains = {
        read.domain for read in subject.selector.read_set.reads if read.domain and read.domain not in _SHARED_DOMAINS
    }
    fix, driver = None, ""
    if len(domains) == 1:
        driver = domains.pop()
        loose = type(root) is Call and root.function in {"_||_", "_?_:_"}
        fix = f"device.driver == {json.dumps(driver)} && {f'({expression})' if loose else expression}"
    better = recompiled(subject, fix) if fix else None
    is_safe = (
        better is not None
        and any(view.driver == driver for view in subject.views)  # otherwise the domain may not be a driver's name
        and keeps_verdicts(outcomes(subject.selector, subject.views), outcomes(better, subject.views))
    )
    message = "a class sees the devices of every driver: compare device.driver first"
    yield LintFinding(
        "missing-driver-guard", message, text_of(first, expression), fix if better else None, is_safe=is_safe
    )


def _is_device(node: Node) -> bool:
    return type(node) is Ident and node.name == "device"


def _comparisons(subject: LintSubject) -> Iterator[LintFinding]:
    found = [
        node
        for node in all_nodes(subject.selector.program.root)
        if type(node) is Call and node.function in OPERATORS and hasattr(node, "start")
    ]
    texts = [(node, value, literal) for node in found for value, literal in _beside_texts(node)]
    versions = versions_among(subject, [value for _, value, _ in texts])
    for node in found:
        left, right = node.args
        if node.function in _EQUALITY and "kubernetes.Quantity" in {left.type.long(), right.type.long()}:
            yield from _quantities(subject, node, left, right)
        for value, literal in _beside_texts(node):
            yield from version_findings(subject, node, value, literal, is_version=value in versions)


def _enormous(subject: LintSubject) -> Iterator[LintFinding]:
    """Report literal amounts with so large an exponent that Kubernetes can't compute with them in reasonable time."""
    for node in all_nodes(subject.selector.program.root):
        if type(node) is not Call or node.function not in _READERS or not hasattr(node, "start"):
            continue
        literal = node.args[0]
        if type(literal) is Literal and type(literal.value) is str and abs(exponent_of(literal.value)) > MAX_EXPONENT:
            message = (
                "so large an exponent can take the scheduler minutes for each device, because it writes out all "
                "digits, and it places no pod meanwhile: write an amount that a device can have"
            )
            yield LintFinding("bad-literal", message, text_of(node, subject.selector.expression))


def _beside_texts(node: Call) -> Iterator[tuple[Node, Literal]]:
    """Yield each operand that is compared with a string literal, and that literal."""
    for value, literal in (node.args, node.args[::-1]):
        if type(literal) is Literal and type(literal.value) is str:
            yield value, literal


def _mistakes(subject: LintSubject, known: set[str]) -> Iterator[LintFinding]:
    """Report classic mistakes that compile, except in clauses that another rule has reported."""
    written = subject.written()
    for mistake in (*operator_mistakes(written), *value_mistakes(written)):
        if mistake.clause in known:
            continue
        better = recompiled(subject, mistake.text)
        is_safe = (
            better is not None
            and len(subject.views) > 0
            and keeps_verdicts(outcomes(subject.selector, subject.views), outcomes(better, subject.views))
        )
        fix = mistake.text if better else None
        yield LintFinding(mistake.rule, mistake.message, mistake.clause, fix, is_safe=is_safe)


def _quantities(subject: LintSubject, node: Call, left: Node, right: Node) -> Iterator[LintFinding]:
    """Report comparisons with an exact amount, and propose a bound; verdicts change, so the fix is never safe."""
    expression = subject.selector.expression
    is_equal = node.function == "_==_"
    value, wanted = (left, right) if place_of(left) or not place_of(right) else (right, left)
    bound = reachable_bound(subject.names, value, wanted)
    fix = None
    if left.type.long() == right.type.long() and hasattr(left, "start") and hasattr(right, "start"):
        amount = text_of(wanted, expression) if bound is None else f'quantity("{bound}")'
        call = f"{text_of(value, expression)}.compareTo({amount}) {'>=' if is_equal else '<'} 0"
        fix = replaced(expression, node, call) if bound != "" else None
    better = recompiled(subject, fix) if fix else None
    rest = "any other amount matches" if not is_equal else "an 80 GB GPU has 81559Mi"
    message = (
        f"{OPERATORS[node.function]} looks for one exact amount ({rest}); "
        f"compareTo(…) {'>=' if is_equal else '<'} 0 is usually meant"
    )
    if bound:
        message += f", and of no more than {bound}: no given device has {text_of(wanted, expression)}"
    yield LintFinding("quantity-equality", message, text_of(node, expression), fix if better else None)


def _deprecated(subject: LintSubject) -> Iterator[LintFinding]:
    for read in sorted(subject.selector.read_set.reads, key=repr):
        name = f"{read.domain}/{read.name}"
        if read.field == "attributes" and name in DEPRECATED:
            yield LintFinding("deprecated-name", f"{name} is no longer published: {DEPRECATED[name]}")
