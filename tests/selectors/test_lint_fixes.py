"""Every fix that lint offers, tried on the devices of every shipped profile.

It compiles, does what its rule promises, and is not constant unless the finding says so.
"""

from __future__ import annotations

from functools import cache

import pytest

from dra_driver.hardware.simulated import profile_names
from dra_driver.selectors.advice.findings import RULES, LintSubject, outcomes
from dra_driver.selectors.advice.lint import apply_safe_fixes, lint
from dra_driver.selectors.evaluate.program import prepare_device
from dra_driver.selectors.kubernetes import KubernetesEngine
from dra_driver.selectors.reads import unknown_names
from dra_driver.tools.world.fleet import fleet_of_profile

PROFILE_NAMES = profile_names()
ENGINE = KubernetesEngine("1.35")
D = "gpu.nvidia.com"
A, C, GUARD = f'device.attributes["{D}"]', f'device.capacity["{D}"]', f'device.driver == "{D}"'

EXPRESSIONS = [
    f'{A}.type == "gpu"',
    f'{GUARD} && {A}.type == "GPU"',
    f"{A}.nvlinkCount >= 12",
    f'{A}.nvlinkCount == "18"',
    f'{A}.productname == "NVIDIA L40S"',
    f'{A}.productName == "x"',
    f'{A}["productName"].startsWith("nvidia")',
    f'"H100" in {A}.productName',
    f'!("H100" in {A}.productName)',
    f'{A}.productName.contains("h100") || {A}.productName.contains("l40s")',
    f'{A}.productName in ["nvidia l40s", "Tesla T4"]',
    f'{C}.memory == quantity("80Gi")',
    f'{C}.memory == quantity("81559Mi")',
    f'{GUARD} && {C}.memory != quantity("80Gi")',
    f'quantity("40Gi") == {C}.memory',
    f'{GUARD} && {C}.memory == quantity("900Gi")',
    f'{C}.memory.isGreaterThan(quantity("40GB"))',
    f'{C}.memory.compareTo(quantity("40 GiB")) >= 0',
    f'{A}.memory.compareTo(quantity("40Gi")) >= 0',
    f'{GUARD} && {A}.?memory.orValue(quantity("0")).compareTo(quantity("1Gi")) >= 0',
    f"has({C}.productName)",
    f'{A}.driverVersion >= "570.0.0"',
    f'{A}.driverVersion == "570.0.0"',
    f'{GUARD} && {A}.driverVersion != "570"',
    f'{A}.driverVersion.compareTo(semver("570")) >= 0',
    f'{A}.driverVersion.isLessThan(semver("v999.1"))',
    f"{A}.cudaComputeCapability >= 9.0",
    f"{A}.cudaComputeCapability < 9",
    f'"9.0" <= {A}.cudaComputeCapability',
    'has(device.attributes.productName)',
    'device.attributes["nvidia.com"].productName.contains("H100")',
    f'cel.bind(a, {A}, a.productName.contains("H100") && a.nvlinkCount > 1)',
    f'{A}.index == 0',
    f'{A}.uuid == "GPU-0"',
    f'{A}.type == "mig" ? {A}.profile == "1G.10GB" : {A}.productName.contains("H100")',
    "true",
    'device.driver == "other"',
]  # fmt: skip


@cache
def views(profile):
    return [prepare_device(device.wire, device.driver) for device in fleet_of_profile(profile).devices]


def subject(text, profile, **options):
    held = views(profile)
    return LintSubject(ENGINE.compile(text), ENGINE, held, [1] * len(held), **options)


@pytest.fixture(params=[(p, c) for p in PROFILE_NAMES for c in (False, True)], ids=str, scope="module")
def offers(request):
    """All findings of all expressions on one profile, with the verdicts before and after each fix."""
    profile, in_class = request.param
    found = []
    for text in EXPRESSIONS:
        linted = subject(text, profile, in_class=in_class)
        for finding in lint(linted):
            if finding.fix is not None:
                better = subject(finding.fix, profile)  # it compiles
                after = outcomes(better.selector, better.views)
                found.append((linted, finding, better, outcomes(linted.selector, linted.views), after))
    return found


def test_every_fix_differs_from_the_expression_and_is_admissible(offers):
    for linted, finding, better, _, _ in offers:
        assert finding.fix != linted.selector.expression
        assert better.selector.admissible or not linted.selector.admissible, finding


def test_a_fix_that_is_constant_on_the_devices_says_so(offers):
    for _, finding, _, _, after in offers:
        if True not in after or set(after) == {True}:
            assert finding.effect, finding


def test_a_safe_fix_changes_no_verdict(offers):
    for _, finding, _, before, after in offers:
        if finding.is_safe:
            assert all(new is old for old, new in zip(before, after, strict=True) if isinstance(old, bool)), finding


def test_a_fix_does_what_its_rule_says(offers):
    for linted, finding, better, before, after in offers:
        rules = {one.rule for one in lint(better)}
        if finding.rule == "unguarded-attribute":
            assert all(isinstance(one, bool) for one in after), finding
        elif finding.rule == "missing-driver-guard":
            assert finding.fix.startswith("device.driver == ")
        elif finding.rule == "unknown-name":
            gone = {one.name for one in unknown_names(better.selector.read_set, better.views)}
            before_names = {one.name for one in unknown_names(linted.selector.read_set, linted.views)}
            assert gone < before_names, finding
        elif finding.rule in {"quantity-equality", "wrong-case", "bad-literal"}:
            clauses = [one.clause for one in lint(better) if one.rule == finding.rule]
            assert finding.clause not in clauses, finding
        else:
            assert finding.rule in {"string-version", "wrong-type"}, finding
            assert sum(isinstance(one, str) for one in after) <= sum(isinstance(one, str) for one in before), rules


@pytest.mark.parametrize("profile", PROFILE_NAMES)
def test_an_exact_amount_becomes_a_bound_that_a_device_reaches_or_no_fix_is_offered(profile):
    for text in (
        f'{C}.memory == quantity("80Gi")',
        f'{C}.memory == quantity("24Gi")',
        f'{C}.memory == quantity("900Gi")',
    ):
        linted = subject(f"{GUARD} && {text}", profile)
        [finding] = [one for one in lint(linted) if one.rule == "quantity-equality"]
        assert ">= 0 is usually meant" in finding.message
        if finding.fix is not None:
            assert finding.fix.endswith(">= 0")
            assert True in outcomes(subject(finding.fix, profile).selector, linted.views), finding


def test_an_advertised_memory_size_becomes_a_bound_that_the_gpu_reaches():
    [finding] = [
        one
        for one in lint(subject(f'{GUARD} && {C}.memory == quantity("80Gi")', "dgx-h100"))
        if one.rule == "quantity-equality"
    ]
    assert finding.fix == f'{GUARD} && {C}.memory.compareTo(quantity("79Gi")) >= 0'
    assert 'no given device has quantity("80Gi")' in finding.message


def test_a_name_that_no_device_has_is_not_guarded():
    """`has(…)` of such a name is never true: the fix would hide the mistake for good."""
    linted = subject(f'{A}.productname == "NVIDIA L40S"', "l40s")
    by_rule = {one.rule: one for one in lint(linted)}
    assert by_rule["unguarded-attribute"].fix is None
    assert by_rule["unknown-name"].fix == f'{A}.productName == "NVIDIA L40S"'
    assert apply_safe_fixes(linted) is None


def test_a_capacity_that_is_read_as_an_attribute_is_called_a_capacity():
    found = {one.rule: one for one in lint(subject(f'{A}.memory.compareTo(quantity("40Gi")) >= 0', "l40s"))}
    assert found["unknown-name"].message == (
        f'no device has the attribute {D}/memory: it is a capacity, device.capacity["{D}"].memory'
    )
    assert found["unknown-name"].fix == f'{C}.memory.compareTo(quantity("40Gi")) >= 0'


COMPUTE, VERSION = f"{A}.cudaComputeCapability", f"{A}.driverVersion"


@pytest.mark.parametrize(
    ("text", "better"),
    [
        (f'"H100" in {A}.productName', f'has({A}.productName) && {A}.productName.contains("H100")'),
        (f"{COMPUTE} >= 9.0", f'has({COMPUTE}) && {COMPUTE}.compareTo(semver("9.0.0")) >= 0'),
        (
            f'{GUARD} && {VERSION}.compareTo(semver("570")) >= 0',
            f'{GUARD} && {VERSION}.compareTo(semver("570.0.0")) >= 0',
        ),
    ],
)
def test_mistakes_that_fail_on_every_device_have_a_safe_fix(text, better):
    assert apply_safe_fixes(subject(text, "demo-h100")) == better


def test_the_expressions_make_every_rule_with_a_fix_offer_one():
    offered = {
        one.rule
        for text in EXPRESSIONS
        for one in lint(subject(text, "demo-h100", in_class=True))
        if one.fix is not None
    }
    without = {
        "runtime-error",
        "always-true",
        "always-false",
        "cost-limit",
        "refused",
        "deprecated-name",
        "two-drivers",
        "unknown-before-launch",
    }
    assert offered == set(RULES) - without
