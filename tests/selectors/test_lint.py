"""Lint: each rule on a small fleet, fixes that keep every verdict, and text that lint must not touch."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.selectors.advice.findings import RULES, LintSubject, outcomes
from dra_driver.selectors.advice.lint import apply_safe_fixes, lint
from dra_driver.selectors.engine import SelectorCompileError
from dra_driver.selectors.evaluate.program import prepare_device
from dra_driver.selectors.kubernetes import KubernetesEngine
from tests.support.cel_expressions import DEVICES, expression

ENGINE = KubernetesEngine("1.35")
DRIVER = "gpu.example.com"
A = f'device.attributes["{DRIVER}"]'
C = f'device.capacity["{DRIVER}"]'
GUARD = f'device.driver == "{DRIVER}"'


def device(memory="80Gi", **attributes):
    kinds = {str: "string", int: "int", bool: "bool"}
    held = {name: {kinds[type(value)]: value} for name, value in attributes.items()}
    return {"attributes": held | {"version": {"version": "2.1.0"}}, "capacity": {"memory": {"value": memory}}}


FLEET = [
    (device(type="gpu", links=4, model="a"), DRIVER),
    (device("40Gi", type="gpu", model="b"), DRIVER),
    ({"attributes": {"rdma": {"bool": True}}}, "dra.net"),
]


def subject(text, fleet=FLEET, **options):
    views = [prepare_device(wire, driver) for wire, driver in fleet]
    return LintSubject(ENGINE.compile(text), ENGINE, views, [1] * len(views), **options)


def rules(text, fleet=FLEET, **options):
    return {finding.rule for finding in lint(subject(text, fleet, **options))}


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (f'{A}.type == "gpu"', "unguarded-attribute"),
        (f'{GUARD} && {C}.nothing.compareTo(quantity("1")) > 0', "unguarded-attribute"),
        (f"{GUARD} && {A}.type < 3", "runtime-error"),
        ("true", "always-true"),
        ('device.driver == "other"', "always-false"),
        (f'{GUARD} && {A}.version == "2.1.0"', "string-version"),
        (f'{GUARD} && {A}.version != "2.1.0"', "string-version"),
        (f'{GUARD} && {A}.model > "10.0.0"', "string-version"),
        (f'{GUARD} && {C}.memory == quantity("80Gi")', "quantity-equality"),
        ('[1, 2].exists(x, device.driver.contains("x"))' + " || device.driver.size() > 0", "two-drivers"),
        (f'{GUARD} && "index" in device.attributes["gpu.nvidia.com"]', "deprecated-name"),
        (f"{GUARD} && {A}.?tpye.orValue(0) == 1", "unknown-name"),
        (f"int({A}.model.split(' ')[2].replace('GB', '')) >= 80", "cost-limit"),
        (f"device.driver != '{'x' * 10_240}'", "refused"),
    ],
)
def test_each_rule_reports_its_mistake(text, rule):
    assert rule in rules(text)


@pytest.mark.parametrize("amount", ["1e999999999", "1E-999999999", "1.5e100001", "1e2147483647"])
def test_an_amount_that_holds_up_a_real_scheduler_is_reported_at_once(amount):
    found = lint(subject(f'{GUARD} && {C}.memory.compareTo(quantity("{amount}")) < 0'))
    [finding] = [one for one in found if one.rule == "bad-literal"]
    assert finding.clause == f'quantity("{amount}")'
    assert "scheduler" in finding.message
    assert finding.fix is None


@pytest.mark.parametrize("amount", ["1e3", "1E", "80Gi", "12e9", "1e4294967299", "1e99999999999999999999"])
def test_an_amount_of_ordinary_size_is_not_reported_as_enormous(amount):
    found = lint(subject(f'{GUARD} && {C}.memory.compareTo(quantity("{amount}")) < 0'))
    assert not [one for one in found if "scheduler" in one.message]


def test_a_class_must_compare_the_driver_first():
    text = f'{A}.type == "gpu"'
    assert "missing-driver-guard" not in rules(text)
    assert "missing-driver-guard" in rules(text, in_class=True)
    assert "missing-driver-guard" not in rules(f"{GUARD} && {text}", in_class=True)
    assert apply_safe_fixes(subject(text, in_class=True)) == f"{GUARD} && {text}"


def test_a_driver_guard_is_not_applied_unless_a_device_shows_that_the_domain_is_a_driver():
    assert apply_safe_fixes(subject(f'{A}.type == "gpu"', fleet=[], in_class=True)) is None


@pytest.mark.parametrize(
    ("text", "better"),
    [
        (f'{A}.type == "gpu"', f'has({A}.type) && {A}.type == "gpu"'),
        (f'{A}["type"] == "gpu"', f'"type" in {A} && {A}["type"] == "gpu"'),
        (f"!({A}.links > 4)", f"has({A}.links) && !({A}.links > 4)"),
        (
            f'{GUARD} && ({A}.links > 3 ? true : {A}.model == "b")',
            f'{GUARD} && (has({A}.links) && ({A}.links > 3 ? true : {A}.model == "b"))',
        ),
        (f"cel.bind(a, {A}, a.links > 1)", f"cel.bind(a, {A}, has(a.links) && a.links > 1)"),
        (
            f'{GUARD} && {A}.version >= "2.1.0"',
            f'{GUARD} && {A}.version.compareTo(semver("2.1.0")) >= 0',
        ),
        (f'{GUARD} && "2" < {A}.version', f'{GUARD} && {A}.version.compareTo(semver("2.0.0")) > 0'),
    ],
)
def test_a_safe_fix_is_applied(text, better):
    assert apply_safe_fixes(subject(text)) == better


@pytest.mark.parametrize(
    "text",
    [
        f'["links"].exists(k, {A}[k] == 1)',  # the name is not in the text
        f"[{A}].exists(a, a.links == 1)",  # the variable does not exist outside
        f"!({A}.rdma)",  # no device has it there: a guarded expression would never be true
        f'{GUARD} && {A}.version != "2.1.0"',  # verdicts would change
        f'{GUARD} && {C}.memory == quantity("40Gi")',  # a bound matches more
        f"{GUARD} && has({A}.links) && {A}.links > 2",
    ],
)
def test_an_expression_without_a_safe_fix_is_left_alone(text):
    assert apply_safe_fixes(subject(text)) is None


def test_a_good_selector_has_no_findings():
    assert rules(f'{GUARD} && {A}.model == "a"') == set()
    assert rules(f"{GUARD} && {A}.?links.orValue(0) > 3") == set()


def test_an_error_that_the_other_operand_absorbs_is_no_finding():
    assert "unguarded-attribute" not in rules(f'{GUARD} && {A}.type == "gpu" || device.driver == "dra.net"')


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_can_be_switched_off(rule):
    for text in ("true", f'{A}.type == "gpu"', f'{C}.memory == quantity("1")'):
        assert rule not in {finding.rule for finding in lint(subject(text, in_class=True), frozenset({rule}))}


@given(st.integers(0, 2**32), st.integers(2, 4))
@settings(max_examples=80, deadline=None)
def test_a_fix_changes_no_verdict_and_adds_no_error(seed, depth):
    text = expression(seed, depth)
    try:
        given_subject = subject(text, [(wire, "dra.example.com") for wire in [*DEVICES, {}]])
    except SelectorCompileError:
        return
    better = apply_safe_fixes(given_subject)
    if better is not None:
        before = outcomes(given_subject.selector, given_subject.views)
        after = outcomes(ENGINE.compile(better), given_subject.views)
        assert all(new is old for old, new in zip(before, after, strict=True) if isinstance(old, bool))


@pytest.mark.parametrize(
    ("text", "effect"),
    [
        (f'{GUARD} && {A}.version == "2.1.0"', "comparing it with a string fails, which aborts scheduling"),
        (f'{GUARD} && "2.1.0" < {A}.version', "comparing it with a string fails, which aborts scheduling"),
        (f'{GUARD} && "2.1.0" == {A}.version', "comparing it with a string is always false"),
        (f'{GUARD} && "2.1.0" != {A}.version', "comparing it with a string is always true"),
        (f'true || {A}.version == "2.1.0"', "comparing it with a string fails"),
    ],
)
def test_what_is_said_of_a_version_beside_a_string_is_what_kubernetes_does(text, effect):
    (found,) = [one.message for one in lint(subject(text, FLEET[:2])) if one.rule == "string-version"]

    assert found == f"the attribute is a version: {effect}"
