"""Type checking, literals, program construction, the cost estimate, and what differs between versions.

Expressions here are this project's own; the recorded verdicts are in test_recorded_verdicts.
"""

from __future__ import annotations

import pytest

from dra_driver.base.errors import InputError
from dra_driver.selectors import CompileErrorKind, SelectorCompileError, SelectorRuntimeError, compile_selector
from tests.support.cel_expressions import A, C


def _refused(text, **options):
    with pytest.raises(SelectorCompileError) as caught:
        compile_selector(text, **options)
    return caught.value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("2u != 2", "1:4: found no matching overload for '_!=_' applied to '(uint, int)'"),
        ('null == "s"', "1:6: found no matching overload for '_==_' applied to '(null, string)'"),
        ("1 + 1.5 > 0.0", "1:3: found no matching overload for '_+_' applied to '(int, double)'"),
        ("size(device.driver, 1) == 3", "1:5: found no matching overload for 'size' applied to '(string, int)'"),
        (
            'device["driver"] == "x"',
            "1:7: found no matching overload for '_[_]' applied to '(kubernetes.DRADevice, string)'",
        ),
        ("device.zzz == 1", "1:7: undefined field 'zzz'"),
        ("device.driver.nope == 1", "1:14: type 'string' does not support field selection"),
        ('quantity("1").value == 1', "1:14: unexpected failed resolution of 'kubernetes.Quantity'"),
        ('1 && "a" == "a"', "1:1: expected type 'bool' but found 'int'"),
        ("[1].all(x, x)", "1:12: expected type 'bool' but found 'int'"),
        (
            "[1].filter(x, x) == [1]",
            "1:11: found no matching overload for '_?_:_' applied to '(int, list(int), list(int))'",
        ),
        ("device.driver.all(c, true)", "1:7: expression of type 'string' cannot be range of a comprehension"),
        ("[?1] == [1]", "1:3: expected type 'optional_type(int)' but found 'int'"),
        ("nope.Message{} == 1", "1:13: undeclared reference to 'nope.Message'"),
        ("int{} == 1", "1:4: 'int' is not a message type"),
        (
            'google.protobuf.Int64Value{value: "a"} == 1',
            "expected type of field 'value' is 'int' but provided type is 'string'",
        ),
        ("unknown(1, nothing)", "1:12: undeclared reference to 'nothing' (in container '')"),
    ],
)
def test_type_errors_have_the_servers_words_and_columns(text, words):
    error = _refused(text)
    assert error.kind is CompileErrorKind.TYPE
    assert words in error.text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[1, 'a'].size() == 2", "1:5: expected type 'int' but found 'string'"),
        ("{1: 1, 'a': 'b'}.size() == 2", "1:8: expected type 'int' but found 'string'"),
        ("duration('3 s') > duration('1s')", "1:10: invalid duration argument"),
        ("duration(1) > duration('1s')", "1:10: invalid duration argument"),
        ("timestamp('now') == timestamp(0)", "1:11: invalid timestamp argument"),
        ("device.driver.matches('(?<!x)y')", "1:23: invalid matches argument"),
        ("matches('[', device.driver)", "1:9: invalid matches argument"),
        (
            "'%d'.format(['a']) == ''",
            "1:14: error during formatting: decimal clause can only be used on integers, was given string",
        ),
        ("'%s'.format([]) == ''", "1:12: index 0 out of range"),
        ("'x'.format([1]) == ''", "1:11: too many arguments supplied to string.format (expected 0, got 1)"),
    ],
)
def test_literals_are_checked_after_the_types(text, words):
    assert words in _refused(text).text


def test_mixed_literals_are_allowed_inside_format():
    assert compile_selector("'%s %d'.format(['a', 1]) == 'a 1'").matches({}, "d")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("int('x') == 1", "type conversion error from 'string' to 'int'"),
        ("true || uint('-1') == 0u", "type conversion error from 'string' to 'uint'"),
        ("uint(-1) == 0u", "unsigned integer overflow"),
        (r"string(b'\xff') == ''", "invalid UTF-8 in bytes, cannot convert to string"),
        ("true || device.driver.find('(') == ''", "error parsing regexp: missing closing ): `(`"),
        ("device.driver.find('[') == ''", "error parsing regexp: missing closing ]: `[`"),
        ("type(device) == kubernetes.DRADevice", "reference to undefined type: kubernetes.DRADevice"),
    ],
)
def test_construction_fails_even_in_branches_that_never_run(text, words):
    error = _refused(text)
    assert error.kind is CompileErrorKind.INSTANTIATION
    assert error.text == f"program instantiation failed: {words}"


@pytest.mark.parametrize(
    "text", ["1", "dyn(true)", "device", "optional.of(true)", f"{A}.a.b", "google.protobuf.BoolValue{}"]
)
def test_a_result_that_is_neither_bool_nor_an_attribute_is_refused(text):
    error = _refused(text)
    assert error.kind is CompileErrorKind.RESULT_TYPE
    assert error.text.startswith("must evaluate to bool or the unknown type, not ")


@pytest.mark.parametrize(
    ("text", "cost"),
    [
        ("true", 0),
        ('device.driver.contains("abcdefghijkl")', 16),
        ('device.driver + "-x" == "dra.example.com-x"', 11),
        ("device.attributes.all(d, d.size() > 3)", 195),
        (f'{A}.all(k, v, k == "{"7" * 70}")', 356),
        (f'{A}.all(k, k == "{"7" * 70}")', 260),
        (f'cel.bind(a, {A}, a.string == "fish" && a.int > 6)', 19),
        ('device.driver.replace("e", "EE").size() > 3', 17),
        ('["q"].isSorted()', 1844674407370955275),
        ('url("https://h/p") == url("https://h/q")', 6),
        ("lists.range(3).map(n, n * 2).sum() == 6", 71),
        ('device.attributes.exists(d, device.attributes[d].exists(n, n == "int"))', 6435),
        (f"{A}.exists(k, {A}[k] == 7)", 324),
        (f'cel.bind(a, {A}, a.exists(k, a[k] == 1 && k == "{"7" * 70}"))', 527),
    ],
)
def test_the_estimate_is_the_servers_number(text, cost):
    assert compile_selector(text).max_cost == cost


def test_the_api_server_refuses_for_cost_length_and_novelty_what_the_scheduler_evaluates():
    cheap = compile_selector("true")
    assert cheap.admissible
    assert not compile_selector(f'int({A}.model.split(" ")[2].replace("GB", "")) >= 80').admissible
    assert not compile_selector("true || " * 1500 + "true").admissible
    assert not compile_selector("device.allowMultipleAllocations").admissible
    assert compile_selector("device.allowMultipleAllocations", gates={"DRAConsumableCapacity": True}).admissible


@pytest.mark.parametrize(
    ("text", "kubernetes", "gates", "environment", "outcome"),
    [
        ("device.allowMultipleAllocations", "1.35", {}, "new", "type"),
        ("device.allowMultipleAllocations", "1.35", {}, "stored", False),
        ("device.allowMultipleAllocations", "1.36", {}, "new", True),
        (f"{A}.int.includes(7)", "1.35", {}, "stored", "type"),
        (f"{A}.int.includes(7)", "1.36", {}, "stored", True),
        (f"{A}.int.includes(7)", "1.36", {}, "new", "type"),
        (f"{A}.int.includes(7)", "1.36", {"DRAListTypeAttributes": True}, "new", True),
        ("dyn(true)", "1.36", {}, "stored", "result-type"),
        ("dyn(true)", "1.36", {"DRAListTypeAttributes": True}, "stored", True),
        ("dyn(true)", "1.37", {}, "new", "result-type"),
        ("dyn(true)", "1.37", {}, "stored", True),
        ("[2, 1].sort() == [1, 2]", "1.34", {}, "new", "type"),
        ("[2, 1].sort() == [1, 2]", "1.34", {}, "stored", True),
        ("[2, 1].sort() == [1, 2]", "1.35", {}, "new", True),
        (f"{A}.strings.exists(s, s == 'b')", "1.36", {"DRAListTypeAttributes": True}, "stored", "attribute"),
    ],
)
def test_versions_gates_and_environments_differ_as_specified(text, kubernetes, gates, environment, outcome):
    device = {"attributes": {"int": {"int": 7}}, "allowMultipleAllocations": True}
    try:
        selector = compile_selector(text, kubernetes=kubernetes, gates=gates, environment=environment)
        result = selector.matches(device, "dra.example.com")
    except SelectorCompileError as error:
        result = str(error.kind)
    except SelectorRuntimeError:
        result = "attribute"
    assert result == outcome


def test_verdicts_are_exact_for_all_supported_versions_and_other_versions_are_refused():
    assert all(compile_selector("true", kubernetes=version).exact for version in ("1.34", "1.35", "1.36", "1.37"))
    with pytest.raises(InputError):
        compile_selector("true", kubernetes="1.20")


def test_quantities_compare_by_methods_only():
    assert "no matching overload for '_>=_'" in _refused(f'{C}.memory >= quantity("1Gi")').text
