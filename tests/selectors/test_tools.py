"""What is built on the engine: read-sets, groups, explanations, suggestions, the batch check, the second opinion."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.base.errors import InputError
from dra_driver.selectors import SelectorCompileError, SelectorRuntimeError, compile_selector
from dra_driver.selectors.celpy_engine import CelPythonEngine
from dra_driver.selectors.check.declarations import declare
from dra_driver.selectors.evaluate.program import prepare_device
from dra_driver.selectors.explain import explain
from dra_driver.selectors.grouping import DeviceGroups, nearest_misses
from dra_driver.selectors.kubernetes import BatchChecker
from dra_driver.selectors.reads import Read, suggest, unknown_names
from tests.support.cel_expressions import DEVICES, A, C, expression

DRIVER = "dra.example.com"


def _gpu(**attributes):
    capacity = {"memory": {"value": attributes.pop("memory", "80Gi")}}
    kinds = {str: "string", int: "int", bool: "bool"}
    return {
        "attributes": {name: {kinds[type(value)]: value} for name, value in attributes.items()},
        "capacity": capacity,
    }


# Read-sets.


@pytest.mark.parametrize(
    ("text", "reads"),
    [
        ("device.driver == 'x'", {("driver", None, None)}),
        (
            f"{A}.model == 'x' && {C}.memory.isLessThan({C}.memory)",
            {("attributes", DRIVER, "model"), ("capacity", DRIVER, "memory")},
        ),
        ("device.attributes.dom.x == 1", {("attributes", "dom", "x")}),
        (f"has({A}.a) && {A}.?b.orValue(1) == 1 && 'c' in {A}", {("attributes", DRIVER, name) for name in "abc"}),
        (f"cel.bind(a, {A}, a.x == 1 && a['y'] == 2)", {("attributes", DRIVER, "x"), ("attributes", DRIVER, "y")}),
        (f"{A}.exists(k, k == 'x')", {("attributes", DRIVER, None)}),
        ("device.attributes.all(d, device.attributes[d].size() > 0)", {("attributes", None, None)}),
        ("'d' in device.attributes", {("attributes", "d", None)}),
        (f"{A}[device.driver] == 1", {("attributes", DRIVER, None), ("driver", None, None)}),
        ("[1].exists(device, device == 1)", set()),
        (f"{A}.a.b == 1", {("attributes", DRIVER, "a")}),
        (
            "device == device",
            {(name, None, None) for name in ("driver", "attributes", "capacity", "allowMultipleAllocations")},
        ),
    ],
)
def test_the_read_set_names_what_an_expression_can_see(text, reads):
    found = compile_selector(text).read_set.reads
    assert {(read.field, read.domain, read.name) for read in found} == reads


def test_guarded_names_are_listed_separately():
    reads = compile_selector(f"has({A}.a) && {A}.a == 1 && {A}.b == 1").read_set
    assert reads.guarded == {Read("attributes", DRIVER, "a")}


# Groups.


def _alone(selector, device, driver):
    try:
        return selector.matches(device, driver)
    except SelectorRuntimeError as error:
        return error.text


@given(st.integers(0, 2**32), st.integers(2, 5))
@settings(max_examples=150, deadline=None)
def test_a_group_gets_the_verdict_of_each_of_its_devices(seed, depth):
    try:
        selector = compile_selector(expression(seed, depth), kubernetes="1.36")
    except SelectorCompileError:
        return
    odd = [
        {"attributes": {"int": {"bool": True}}},
        {"attributes": {"int": {"int": 1}}},
        {"attributes": {"dra.example.com/int": {"int": 1}}, "capacity": {}},
        {"attributes": {"broken": {"version": "1"}}},
        {"attributes": {"broken": {"strings": ["a"]}}},
        {"capacity": {"memory": {"value": "broken"}}},
        {"capacity": {"memory": {"value": "40Gi"}, "slots": {"value": "7"}}},
    ]
    devices = [(device, driver) for device in [*DEVICES, *odd] for driver in (DRIVER, "other.example.com")]
    groups = DeviceGroups(devices, selector.read_set)
    for (device, driver), verdict in zip(devices, groups.matches(selector), strict=True):
        shown = verdict.text if isinstance(verdict, SelectorRuntimeError) else verdict
        assert shown == _alone(selector, device, driver)


def test_groups_are_few_however_many_devices_there_are():
    selector = compile_selector(f'{A}.model == "H100"')
    devices = [(_gpu(model="H100" if i % 3 else "A100", uuid=f"GPU-{i}"), DRIVER) for i in range(3000)]
    groups = DeviceGroups(devices, selector.read_set)
    assert len(groups.views) == 2
    assert sorted(groups.counts()) == [1000, 2000]
    assert sum(verdict is True for verdict in groups.matches(selector)) == 2000


def test_a_selector_that_reads_more_than_the_devices_are_grouped_by_is_refused():
    groups = DeviceGroups([(_gpu(a=1), DRIVER)], compile_selector(f"{A}.a == 1").read_set)
    with pytest.raises(ValueError, match="not grouped by"):
        groups.matches(compile_selector(f"{A}.b == 1"))


# Explanations.


def test_an_explanation_shows_every_part_and_the_one_that_decides():
    selector = compile_selector(
        f'device.driver == "{DRIVER}" && {A}.model == "H100" && {C}.memory.isGreaterThan(quantity("1Ti"))'
    )
    found = explain(selector, prepare_device(_gpu(model="A100"), DRIVER))
    assert found.match is False
    assert found.deciding is not None
    assert found.deciding.text == f'{A}.model == "H100"'
    assert found.tree is not None
    assert [part.value for part in found.tree.parts] == ["true", "false", "false"]
    assert found.tree.parts[1].parts[0].value == '"A100"'


def test_an_explanation_of_a_failure_points_at_the_missing_name():
    found = explain(compile_selector(f"{A}.missing == 1 || {A}.a == 2"), prepare_device(_gpu(a=1), DRIVER))
    assert found.match is None
    assert found.error == "no such key: missing"
    assert found.deciding is not None
    assert found.deciding.text == f"{A}.missing == 1"


def test_a_device_that_can_not_be_converted_has_no_tree():
    found = explain(compile_selector("true"), prepare_device({"attributes": {"v": {"version": "1"}}}, DRIVER))
    assert (found.match, found.tree) == (None, None)
    assert found.error is not None


@pytest.mark.parametrize(
    ("clause", "reason"),
    [
        (f'{C}.memory.compareTo(quantity("80Gi")) >= 0', "memory: 79.0 GiB (79Gi) < 80.0 GiB (80Gi)"),
        (f'{C}.memory.isGreaterThan(quantity("80Gi"))', "memory: 79.0 GiB (79Gi) <= 80.0 GiB (80Gi)"),
        (f'{A}.model == "H100"', 'model: "A100" != "H100"'),
        (f'{A}.model in ["H100", "H200"]', 'model: "A100" not in ["H100", "H200"]'),
        (f"has({A}.numa)", "numa: missing"),
        (f"{A}.numa == 0", "numa: missing"),
        (f"{A}.healthy", "healthy: false"),
        (f'{A}.model.startsWith("H")', 'model: "A100" fails startsWith("H")'),
    ],
)
def test_a_near_miss_says_in_few_words_what_is_wrong(clause, reason):
    selector = compile_selector(f'device.driver == "{DRIVER}" && {clause}')
    views = [prepare_device(_gpu(model="A100", memory="79Gi", healthy=False), DRIVER)]
    assert [miss.reason for miss in nearest_misses(selector, views)] == [reason]


def test_a_near_miss_of_a_very_long_clause_is_still_told_in_few_words():
    wanted = " || ".join(f'{A}.model == "H{number}"' for number in range(400))
    selector = compile_selector(f'device.driver == "{DRIVER}" && ({wanted})')
    (miss,) = nearest_misses(selector, [prepare_device(_gpu(model="A100"), DRIVER)])
    assert len(miss.clause) > 10_000
    assert len(miss.reason) < 160
    assert miss.reason.startswith(f'{A}.model == "H0" || ')
    assert miss.reason.endswith('== "H399": false')


def test_near_misses_count_devices_that_fail_one_clause_only():
    selector = compile_selector(f'cel.bind(a, {A}, a.model == "H100" && a.index > 0)')
    views = [
        prepare_device(_gpu(model=model, index=i), DRIVER) for i, model in enumerate(["H100", "H100", "A100", "A100"])
    ]
    assert [(miss.reason, miss.devices) for miss in nearest_misses(selector, views)] == [
        ('model: "A100" != "H100"', (2, 3)),
        ("index: 0 <= 0", (0,)),
    ]


# Suggestions.


def test_unknown_names_come_with_what_was_probably_meant():
    views = [prepare_device(_gpu(productName="H100"), DRIVER)]
    selector = compile_selector(
        f'{A}.prodctName == "x" && {C}.memroy == {C}.memory && device.attributes["dra.exampel.com"].a == 1'
    )
    assert [(found.kind, found.name, found.suggestions) for found in unknown_names(selector.read_set, views)] == [
        ("domain", "dra.exampel.com", ("dra.example.com",)),
        ("attribute", "dra.example.com/prodctName", ("dra.example.com/productName",)),
        ("capacity", "dra.example.com/memroy", ("dra.example.com/memory",)),
    ]


def test_compile_errors_come_with_functions_and_fields_that_exist():
    with pytest.raises(SelectorCompileError) as caught:
        compile_selector('device.atributes["x"].y.lowerAsci() == "x" && devic.driver == "s"')
    found = suggest(caught.value, declare("1.35", None, "stored"))
    assert [(one.kind, one.suggestions[0]) for one in found] == [
        ("function", "lowerAscii"),
        ("variable", "device"),
        ("field", "attributes"),
    ]


# The batch check.


def test_a_batch_line_is_answered_with_every_field():
    defaults = {"driver": DRIVER, "devices": [_gpu(a=1), _gpu(b=1)], "kubernetes": "1.36"}
    assert BatchChecker(defaults).check({"id": 7, "expression": f"{A}.a == 1"}) == {
        "id": 7,
        "compileError": None,
        "kind": None,
        "type": "bool",
        "maxCost": 5,
        "admissible": True,
        "results": [{"match": True}, {"error": "no such key: a"}],
    }


def test_a_batch_line_that_does_not_compile_has_no_results():
    verdict = BatchChecker({"devices": [{}]}).check({"id": "x", "expression": "1 +"})
    assert (verdict["kind"], verdict["type"], verdict["maxCost"], verdict["admissible"], verdict["results"]) == (
        "syntax",
        None,
        None,
        False,
        [],
    )
    assert verdict["compileError"].startswith("compilation failed: ERROR: <input>:1:4: ")


def test_admissible_is_the_servers_verdict_whatever_the_environment():
    line = {"expression": "device.allowMultipleAllocations", "devices": [{"allowMultipleAllocations": True}]}
    assert BatchChecker({}).check(line)["admissible"] is False
    assert BatchChecker({}).check(line)["results"] == [{"match": False}]
    gated = BatchChecker({}).check({**line, "gates": {"DRAConsumableCapacity": True}, "environment": "new"})
    assert (gated["admissible"], gated["results"]) == (True, [{"match": True}])


def test_over_long_expressions_are_still_evaluated():
    verdict = BatchChecker({}).check({"expression": "true || " * 2000 + "true", "devices": [{}]})
    assert (verdict["admissible"], verdict["results"]) == (False, [{"match": True}])


@pytest.mark.parametrize(
    "line",
    [
        {},
        {"expression": 1},
        {"expression": "true", "devices": {}},
        {"expression": "true", "devices": [1]},
        {"expression": "true", "gates": {"x": 1}},
        {"expression": "true", "environment": "old"},
        {"expression": "true", "kubernetes": "9"},
    ],
)
def test_a_malformed_batch_line_is_an_input_error(line):
    with pytest.raises(InputError):
        BatchChecker({}).check(line)


# The second opinion.


def test_the_second_opinion_has_a_caveat_and_neither_type_nor_cost():
    assert CelPythonEngine.caveat == "portable CEL, not the scheduler's verdict"
    selector = CelPythonEngine().compile("true")
    assert (selector.output_type, selector.max_cost, selector.admissible) == (None, None, None)


_NUMBERS = st.integers(-5, 5).map(str)
_INTS = st.recursive(
    st.one_of(_NUMBERS.map(lambda n: f"({n})"), st.just(f"{A}.int"), st.just('"abc".size()'), st.just("[1, 2].size()")),
    lambda inner: st.builds(lambda a, op, b: f"({a} {op} {b})", inner, st.sampled_from("+-*"), inner),
    max_leaves=4,
)
_STRINGS = st.sampled_from([f"{A}.string", "device.driver", '"fish"', f"{A}.model.lowerAscii()"])
_PORTABLE = st.recursive(
    st.one_of(
        st.builds(
            lambda a, op, b: f"({a} {op} {b})", _INTS, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), _INTS
        ),
        st.builds(lambda a, op, b: f"({a} {op} {b})", _STRINGS, st.sampled_from(["==", "!=", "<"]), _STRINGS),
        st.builds(
            lambda a, f, b: f"({a}).{f}({b})",
            _STRINGS,
            st.sampled_from(["startsWith", "endsWith", "contains"]),
            _STRINGS,
        ),
        st.builds(lambda n: f"[1, 2, 3].exists(x, x > {n})", _INTS),
        st.builds(lambda n: f"[1, 2, 3].all(x, x != {n})", _INTS),
        st.builds(lambda n: f"{n} in [1, 2, 3]", _NUMBERS),
        st.just(f"has({A}.bool) && {A}.bool"),
        st.just(f"has({A}.nothing)"),
        st.just(f'"int" in {A}'),
        st.just(f'{C}.memory.isGreaterThan(quantity("1Gi"))'),
        st.just(f'{A}.version.isLessThan(semver("2.0.0"))'),
    ),
    lambda inner: st.one_of(
        st.builds(lambda a, op, b: f"({a} {op} {b})", inner, st.sampled_from(["&&", "||"]), inner),
        st.builds(lambda a: f"!({a})", inner),
        st.builds(lambda a, b, c: f"({a} ? {b} : {c})", inner, inner, inner),
    ),
    max_leaves=4,
)


@pytest.fixture(scope="module")
def _cel_python():
    """Let cel-python raise the recursion limit, as it does on its first use, before hypothesis checks the limit."""
    limit = sys.getrecursionlimit()
    CelPythonEngine().compile("true")
    yield
    sys.setrecursionlimit(limit)


@pytest.mark.usefixtures("_cel_python")
@given(_PORTABLE)
@settings(max_examples=60, deadline=None)
def test_both_engines_agree_on_portable_expressions(text):
    ours, theirs = compile_selector(text), CelPythonEngine().compile(text)
    assert theirs.matches(DEVICES[0], DRIVER) is ours.matches(DEVICES[0], DRIVER)


def test_the_second_opinion_raises_the_errors_of_the_engine_interface():
    with pytest.raises(SelectorCompileError):
        CelPythonEngine().compile("1 +")
    with pytest.raises(SelectorRuntimeError):
        CelPythonEngine().compile(f"{A}.nope == 1").matches({}, DRIVER)


def test_compiling_selectors_loads_neither_celpy_nor_re2():
    code = (
        "import sys; from dra_driver.selectors import compile_selector; "
        "assert compile_selector('true').matches({}, 'd'); "
        "assert not {'celpy', 're2', 'lark', 'pydantic', 'kubernetes'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
