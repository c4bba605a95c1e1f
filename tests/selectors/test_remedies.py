"""Classic mistakes: each gets a sentence and an expression that compiles and matches what was meant."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.selectors.advice.findings import outcomes
from dra_driver.selectors.advice.mistakes import KnownNames
from dra_driver.selectors.advice.remedies import remedy
from dra_driver.selectors.check.declarations import declare
from dra_driver.selectors.engine import SelectorCompileError
from dra_driver.selectors.evaluate.program import prepare_device
from dra_driver.selectors.kubernetes import KubernetesEngine
from dra_driver.tools.world.fleet import fleet_of_profile

ENGINE = KubernetesEngine("1.35")
DECLARATIONS = declare("1.35", {}, "stored")
VIEWS = [prepare_device(device.wire, device.driver) for device in fleet_of_profile("demo-h100").devices]
NAMES, PUBLISHED = KnownNames.of(VIEWS), KnownNames.of([])
D = "gpu.nvidia.com"
A, C = f'device.attributes["{D}"]', f'device.capacity["{D}"]'
MEMORY = f'{C}.memory.compareTo(quantity("40Gi"))'

VERSION, COMPUTE = f"{A}.driverVersion", f"{A}.cudaComputeCapability"

MISTAKES = [
    ('memory >= quantity("40Gi")', f"{MEMORY} >= 0", "memory is a capacity of gpu.nvidia.com"),
    ('device.memory >= quantity("40Gi")', f"{MEMORY} >= 0", "device has no memory"),
    (f'{C}.memory >= quantity("40Gi")', f"{MEMORY} >= 0", "compareTo"),
    (f'{C}.memory > "40Gi"', f"{MEMORY} > 0", "memory is a quantity"),
    (f"{C}.memory > 40", f"{MEMORY} > 0", 'quantity("40Gi")'),
    (f"40 <= {C}.memory", f"{MEMORY} >= 0", 'quantity("40Gi")'),
    ('device.capacity["memory"] > 40', f"{MEMORY} > 0", "the domain is missing"),
    (f'{C}.memory == "40Gi"', f"{MEMORY} >= 0", "memory is a quantity"),
    (f'{C}.memory.isGreaterThan("40Gi")', f'{C}.memory.isGreaterThan(quantity("40Gi"))', "quantity, not a text"),
    (f'{C}.memory.compareTo("40GB") >= 0', f'{C}.memory.compareTo(quantity("40G")) >= 0', "takes a quantity"),
    ('device.productName == "x"', f'{A}.productName == "x"', "productName is an attribute of gpu.nvidia.com"),
    ('device.attributes["productName"] == "x"', f'{A}.productName == "x"', "the domain is missing"),
    ('device.attributes.productName == "x"', f'{A}.productName == "x"', "the domain is missing"),
    (f'device.attributes["{D}/productName"] == "x"', f'{A}.productName == "x"', "is not a domain"),
    (f'device.Attributes["{D}"].type == "gpu"', f'{A}.type == "gpu"', "it has attributes"),
    (f'attributes["{D}"].type == "gpu"', f'{A}.type == "gpu"', "a field of device"),
    (f'{A}.type = "gpu"', f'{A}.type == "gpu"', "no operator ="),
    (f'{A}.type === "gpu"', f'{A}.type == "gpu"', "==="),
    (f'{A}.type <> "gpu"', f'{A}.type != "gpu"', "<>"),
    (f'device.driver == "{D}" | {A}.type == "a|b"', f'device.driver == "{D}" || {A}.type == "a|b"', "no operator |"),
    (f'device.driver == "{D}" & true', f'device.driver == "{D}" && true', "no operator &"),
    (f'true and {A}.type == "x and y"', f'true && {A}.type == "x and y"', "no operator `and`"),
    (f'device.driver == "{D}" OR true', f'device.driver == "{D}" || true', "no operator `or`"),
    (f'not {A}.type == "gpu" && true', f'!({A}.type == "gpu") && true', "no operator `not`"),
    (f'{A}.type not in ["gpu", "x"]', f'!({A}.type in ["gpu", "x"])', "not in"),
    (f'{A}.productName like "%H100%"', f'{A}.productName.contains("H100")', "search a text"),
    (f"{A}.type == gpu", f'{A}.type == "gpu"', "a text needs quotes"),
    (f"device.driver == {D}", f'device.driver == "{D}"', "a text needs quotes"),
    (f'device.attributes[{D}].type == "gpu"', f'{A}.type == "gpu"', "a text needs quotes"),
    (f"device.driver == “{D}”", f'device.driver == "{D}"', "not curly ones"),
    (f"device.driver == '{D}", f"device.driver == '{D}'", "is not closed"),
    (f'(device.driver == "{D}" && (true || false)', f'(device.driver == "{D}" && (true || false))', ") is missing"),
    (f'{VERSION} >= semver("570")', f'{VERSION}.compareTo(semver("570.0.0")) >= 0', "versions have no operator >="),
    (f'{VERSION}.isGreaterThan("570")', f'{VERSION}.isGreaterThan(semver("570.0.0"))', "takes a version"),
    (f"{A}.integrated == True", f"{A}.integrated == true", "True is written true"),
]  # fmt: skip


def compiles(text):
    try:
        ENGINE.compile(text)
    except SelectorCompileError:
        return False
    return True


@pytest.mark.parametrize(("text", "better", "sentence"), MISTAKES, ids=[row[0] for row in MISTAKES])
def test_a_classic_mistake_gets_its_remedy(text, better, sentence):
    assert not compiles(text)
    found = remedy(text, DECLARATIONS, NAMES, compiles)
    assert found is not None
    assert found.better == better
    assert sentence in "; ".join(found.sentences)
    outcomes_there = outcomes(ENGINE.compile(found.better), VIEWS)
    assert all(isinstance(one, bool) or "no such key" in one for one in outcomes_there)  # a name that a NIC lacks


@pytest.mark.parametrize(("text", "better"), [row[:2] for row in MISTAKES], ids=[row[0] for row in MISTAKES])
def test_without_devices_the_names_that_the_driver_publishes_give_the_same_remedy(text, better):
    found = remedy(text, DECLARATIONS, PUBLISHED, compiles)
    assert found is not None
    assert found.better == better


@pytest.mark.parametrize(
    ("text", "better"),
    [
        ('device.capacity["memory"] > 40 and uuid = "x"', f'{MEMORY} > 0 && {A}.uuid == "x"'),
        ('not (type == mig | memory < "40Gi")', f'!({A}.type == "mig" || {MEMORY} < 0)'),
        (
            'device.driverVersion >= "570" and device.cudaComputeCapability >= 9.0',
            f'{VERSION}.compareTo(semver("570.0.0")) >= 0 && {COMPUTE}.compareTo(semver("9.0.0")) >= 0',
        ),
    ],
)
def test_several_mistakes_are_corrected_together(text, better):
    assert remedy(text, DECLARATIONS, NAMES, compiles).better == better


@pytest.mark.parametrize(
    "text",
    [
        f'device.driver == "{D}"',
        f'{A}.type == "a = b | c and d"',
        'device.attributes["gpu.amd.com"].productName == "x"',
        'device.attributes["dra.net"].rdma',
        "[1, 2].exists(and_, and_ > 1)",
        f'{A}.?nvlinkCount.orValue(0) >= 12 && {C}.memory.compareTo(quantity("1Gi")) >= 0',
    ],
)
def test_a_correct_expression_has_no_remedy(text):
    assert compiles(text)
    for names in (NAMES, PUBLISHED):
        assert remedy(text, DECLARATIONS, names, compiles) is None


def test_an_expression_to_which_no_rule_applies_has_no_remedy():
    assert remedy("device.driver ==", DECLARATIONS, NAMES, compiles) is None
    assert remedy("", DECLARATIONS, NAMES, compiles) is None


@given(st.text(alphabet="device.attributes[\"]memory=|&(){} andnotlike'“”\x00é<>~!0123", max_size=60))
@settings(max_examples=300, deadline=None)
def test_whatever_is_written_the_better_expression_compiles(text):
    found = remedy(text, DECLARATIONS, NAMES, compiles)
    if found is not None and found.better:
        assert compiles(found.better)


def test_a_very_long_text_is_left_alone():
    assert remedy("(" * 20_000, DECLARATIONS, NAMES, compiles) is None


@pytest.mark.parametrize(
    "text",
    [
        f'{A}.productName.contains("H100")',
        f'{C}.memory.compareTo(quantity("40Gi")) >= 0',
        f'{A}.driverVersion.isGreaterThan(semver("570.0.0"))',
    ],
)
def test_a_selector_that_is_not_yet_written_to_its_end_gets_an_answer_too(text):
    for end in range(len(text)):
        for rest in ("", ")"):
            remedy(text[:end] + rest, DECLARATIONS, NAMES, compiles)
