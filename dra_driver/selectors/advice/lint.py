"""Rules that look at the expression: guards, comparisons, cost, names.

In: a selector. Out: findings, which are more precise if devices are given.

Source: Kubernetes API resource/v1 (limits of selectors); names that NVIDIA's driver stopped publishing.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

from dra_driver.base.errors import CEL_COST, CEL_EXPRESSION_BYTES
from dra_driver.base.quantity import Quantity, QuantityError
from dra_driver.base.wire import DeviceType
from dra_driver.selectors.advice.findings import (
    OPERATORS,
    RULES,
    LintFinding,
    LintSeverity,
    LintSubject,
    clauses,
    fleet_findings,
    keeps_verdicts,
    outcome,
    outcomes,
    recompiled,
    start_of,
    version_findings,
    versions_among,
)
from dra_driver.selectors.advice.habits import habit_mistakes
from dra_driver.selectors.advice.mistakes import KnownNames, place_of
from dra_driver.selectors.advice.remedies import Remedy, exponent_of, operator_mistakes, remedy, value_mistakes
from dra_driver.selectors.engine import SelectorCompileError
from dra_driver.selectors.evaluate.program import DeviceView, prepare_device
from dra_driver.selectors.grouping import nearest_misses
from dra_driver.selectors.kubernetes import KubernetesEngine, KubernetesSelector
from dra_driver.selectors.parse.tree import Call, Ident, Literal, Node, Select, all_nodes, replaced, text_of

# Bounds: the lower bound that an exact amount probably means, if a given device reaches it.

_NEAR = Fraction(85, 100)  # a device is near if it has this share of the written amount
_HUGE = 24  # a scale, beyond every amount of memory
_UNITS = ((1 << 30, "Gi"), (1 << 20, "Mi"), (1, ""))


def reachable_bound(names: KnownNames, value: Node, wanted: Node) -> str | None:
    """Return None if the written amount can stay, else the next round amount that devices reach ("" for none)."""
    place, amount = place_of(value), _amount(wanted)
    known = [_whole(one) for one in names.values(place) if isinstance(one, Quantity)] if place else []
    if amount is None or not known or max(known) >= amount:
        return None
    near = max(known)
    if near < amount * _NEAR:
        return ""
    unit, suffix = next((unit, suffix) for unit, suffix in _UNITS if near >= 8 * unit or unit == 1)
    return f"{near // unit}{suffix}"


def _amount(node: Node) -> Fraction | None:
    """Return the exact amount of quantity("…"); None for any other node and for an unreadable text."""
    if type(node) is not Call or node.function != "quantity" or type(node.args[0]) is not Literal:
        return None
    try:
        return Fraction(_whole(Quantity.parse(node.args[0].value)))
    except (QuantityError, TypeError):
        return None


def _whole(quantity: Quantity) -> int:
    """Return a quantity rounded down; 2^63 stands for any amount that is absurdly large."""
    return (1 << 63) if quantity.scale > _HUGE else int(quantity.value)


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
        message = f"the worst-case cost {cost:,} is {share} % of the limit of {CEL_COST:,}"
        yield LintFinding("cost-limit", message, weight=LintSeverity.NOTE)


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
            yield LintFinding("bad-literal", message, text_of(node, subject.selector.expression), start=node.start)


def _beside_texts(node: Call) -> Iterator[tuple[Node, Literal]]:
    """Yield each operand that is compared with a string literal, and that literal."""
    for value, literal in (node.args, node.args[::-1]):
        if type(literal) is Literal and type(literal.value) is str:
            yield value, literal


def _mistakes(subject: LintSubject, known: set[str]) -> Iterator[LintFinding]:
    """Report classic mistakes that compile, except in clauses that another rule has reported."""
    written = subject.written()
    for mistake in (*operator_mistakes(written), *value_mistakes(written), *habit_mistakes(written)):
        if mistake.clause in known:
            continue
        better = recompiled(subject, mistake.text) if mistake.text else None
        is_safe = (
            better is not None
            and not mistake.is_guess
            and len(subject.views) > 0
            and keeps_verdicts(outcomes(subject.selector, subject.views), outcomes(better, subject.views))
        )
        fix = mistake.text if better else None
        yield LintFinding(mistake.rule, mistake.message, mistake.clause, fix, is_safe=is_safe, start=mistake.start)


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
    fix = fix if better else None
    yield LintFinding("quantity-equality", message, text_of(node, expression), fix, start=node.start)


def _deprecated(subject: LintSubject) -> Iterator[LintFinding]:
    for read in sorted(subject.selector.read_set.reads, key=repr):
        name = f"{read.domain}/{read.name}"
        if read.field == "attributes" and name in DEPRECATED:
            message = f"{name} is no longer published: {DEPRECATED[name]}"
            yield LintFinding("deprecated-name", message, start=start_of(subject, name))


# Autoscalers: whether an autoscaler would start a node for a selector when no such node exists yet.

RULE = "unknown-before-launch"
_DOMAIN = "gpu.nvidia.com"
_CARDS = "dra.net"
_KARPENTERS_DRIVERS = (_DOMAIN, _CARDS)
_TYPE = "type"


class Autoscaler(enum.StrEnum):
    """An autoscaler that can start nodes for claims."""

    KARPENTER_AWS = "karpenter-aws"
    CLUSTER_AUTOSCALER = "cluster-autoscaler"


# What a selector may read of a device on a node that does not exist yet: field, domain, name.
_KNOWN = {
    Autoscaler.KARPENTER_AWS: frozenset(
        {
            *(
                ("attributes", _DOMAIN, name)
                for name in (_TYPE, "productName", "architecture", "brand", "cudaComputeCapability")
            ),
            ("capacity", _DOMAIN, "memory"),
            *(
                ("attributes", _CARDS, name)  # of its network cards, which a claim may have beside a GPU
                for name in ("pciDevice", "pciVendor", "pciSubsystem", "rdma", "numaNode")
            ),
        }
    ),
    Autoscaler.CLUSTER_AUTOSCALER: frozenset({("attributes", _DOMAIN, _TYPE)}),
}
_STANDARD = "resource.kubernetes.io"
_WHOLE = {"attributes": {_TYPE: {"string": str(DeviceType.GPU)}}}  # the device of the annotations, for any driver


def autoscaler_findings(subject: LintSubject, autoscaler: Autoscaler) -> Iterator[LintFinding]:
    """Report facts that the selector needs and that the autoscaler does not have about a node that it could start."""
    unknown = sorted({(*key, text) for key, text in _names(subject) if not _is_known(key, autoscaler)})
    for *_, text in unknown:
        yield LintFinding(
            RULE,
            f"{autoscaler} does not know {text} before a node exists, so it starts none for this selector; "
            f"it knows {_listed(autoscaler)} (docs/autoscalers.md)",
        )
    others = sorted({domain for (_, domain, name), _ in _names(subject) if name == _TYPE} - {_DOMAIN, _STANDARD})
    if not unknown and subject.is_last and others:
        if not any(outcome(subject.selector, prepare_device(_WHOLE, driver)) is True for driver in (*others, _DOMAIN)):
            yield LintFinding(RULE, f'{autoscaler} knows only GPUs of type "gpu", which the selector excludes')
    elif not unknown and subject.is_last and (found := _only_parts(subject)):
        yield LintFinding(RULE, f"only {found} match, but before a node exists {autoscaler} knows only whole GPUs")
    if autoscaler is Autoscaler.KARPENTER_AWS and _is_of_other_drivers(subject):
        yield LintFinding(RULE, f"{autoscaler} knows only devices of {' and '.join(_KARPENTERS_DRIVERS)}")


def _is_known(key: tuple[str, str, str], autoscaler: Autoscaler) -> bool:
    """Return whether an autoscaler supports a name that a selector reads; annotations give the `type` of any device."""
    is_any = autoscaler is Autoscaler.CLUSTER_AUTOSCALER and key[0] == "attributes" and key[1] != _STANDARD
    return key in _KNOWN[autoscaler] or (is_any and key[2] == _TYPE)


def _names(subject: LintSubject) -> Iterator[tuple[tuple[str, str, str], str]]:
    """Yield what the selector reads: field, domain and name, and how a person writes it."""
    for read in subject.selector.read_set.reads:
        if read.field == "driver":
            continue
        key = read.field, read.domain or "", read.name or ""
        is_one = read.domain is not None and read.name is not None
        yield key, f"{read.domain}/{read.name}" if is_one else f"all of device.{read.field}"


def _listed(autoscaler: Autoscaler) -> str:
    return ", ".join(sorted(name for _, domain, name in _KNOWN[autoscaler] if domain == _DOMAIN))


def _only_parts(subject: LintSubject) -> str:
    """Return which types of devices match, as text, if none of them is a whole GPU, else ""."""
    found = outcomes(subject.selector, subject.views)
    matching = [view for view, one in zip(subject.views, found, strict=True) if one is True]
    types = {str(view.attributes.get(view.driver, {}).get(_TYPE, "")) for view in matching}
    if not types:
        types = _types_not_refused(subject)
    return "" if not types or types & {str(DeviceType.GPU), ""} else f"devices of type {', '.join(sorted(types))}"


def _is_of_other_drivers(subject: LintSubject) -> bool:
    """Return whether the selector reads nothing but the driver, and accepts none that Karpenter supports."""
    return not list(_names(subject)) and all(
        outcome(subject.selector, prepare_device({}, driver)) is False for driver in _KARPENTERS_DRIVERS
    )


def _types_not_refused(subject: LintSubject) -> set[str]:
    """Return the types of devices that the selector does not refuse by their type alone; none if it refuses all."""
    bare = {kind: prepare_device({"attributes": {_TYPE: {"string": str(kind)}}}, _DOMAIN) for kind in DeviceType}
    return {str(kind) for kind, view in bare.items() if outcome(subject.selector, view) is not False}


# Lint: find selectors that compile but cause trouble, and propose better ones.

_MAX_ROUNDS = 16
_FIRST = "missing-driver-guard"  # once this fix is applied, other guards are often unnecessary


def lint(
    subject: LintSubject, disabled: frozenset[str] = frozenset(), autoscaler: Autoscaler | None = None
) -> list[LintFinding]:
    """Apply all rules to one selector and return the findings, worst first; with an autoscaler, its rule too."""
    subject = replace(subject, known=subject.names)
    found = [*fleet_findings(subject), *text_findings(subject)]
    if autoscaler is not None:
        found += autoscaler_findings(subject, autoscaler)
    order, severities = list(RULES), list(LintSeverity)
    kept = [_with_effect(subject, finding) for finding in found if finding.rule not in disabled]
    return sorted(kept, key=lambda finding: (severities.index(finding.severity), order.index(finding.rule)))


def _with_effect(subject: LintSubject, finding: LintFinding) -> LintFinding:
    """Return the finding, with an effect if its fix gives the same verdict on all given devices."""
    if finding.fix is None or not subject.views:
        return finding
    better = recompiled(subject, finding.fix)
    found = set(outcomes(better, subject.views)) if better else set()
    if True not in found:
        return replace(finding, effect="no given device matches then")
    if found == {True}:
        return replace(finding, effect="every given device matches then")
    return finding


def apply_safe_fixes(subject: LintSubject, disabled: frozenset[str] = frozenset()) -> str | None:
    """Apply safe fixes until none is left; return the better expression, or None if there was nothing to fix."""
    now = subject = replace(subject, known=subject.names)
    for _ in range(_MAX_ROUNDS):
        safe = [one for one in lint(now, disabled) if one.is_safe]
        safe.sort(key=lambda one: one.rule != _FIRST)
        fix = safe[0].fix if safe else None
        if fix is None or fix == now.selector.expression:
            break
        environment = now.selector.declarations.environment
        now = replace(now, selector=now.engine.compile(fix, environment=environment))
    return None if now is subject else now.selector.expression


# Guarded remedies: the remedy for an expression, with guards where a device lacks a name.


def guarded_remedy(expression: str, engine: KubernetesEngine, views: Sequence[DeviceView]) -> Remedy | None:
    """Return the remedy, tested on the devices that the expression sees; None if no rule explains what is wrong."""
    names = KnownNames.of(views)
    found = remedy(expression, engine.declarations, names, lambda text: _compiled(engine, text) is not None)
    selector = _compiled(engine, found.better) if found and found.better else None
    if found is None or selector is None:
        return found
    subject = LintSubject(selector, engine, views, [1] * len(views), known=names)
    better = apply_safe_fixes(subject) or found.better
    final = _compiled(engine, better)
    sentences = found.sentences
    if final is not None and views and True not in outcomes(final, views):
        near = nearest_misses(final, views)
        sentences += (f"even then no given device matches{f': {near[0].reason}' if near else ''}",)
    return Remedy(sentences, better)


def _compiled(engine: KubernetesEngine, text: str) -> KubernetesSelector | None:
    try:
        return engine.compile(text)
    except SelectorCompileError:
        return None
