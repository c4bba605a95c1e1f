"""What expressions evaluate to: quirks of the server, libraries, hostile input, and that both evaluators agree."""

# ruff: noqa: E501  (an expression reads best on one line)

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.selectors import SelectorCompileError, SelectorRuntimeError, compile_selector
from dra_driver.selectors.evaluate.compiler import compile_program
from dra_driver.selectors.evaluate.program import prepare_device
from dra_driver.selectors.functions.strings import BadPattern, compile_pattern
from dra_driver.selectors.values import values
from dra_driver.selectors.values.values import COST_EXCEEDED, CelAbort, CelError
from tests.support.cel_expressions import DEVICES, A, C, expression

DRIVER = "dra.example.com"


def _result(text, device=DEVICES[0], **options):
    try:
        return compile_selector(text, **options).matches(device, DRIVER)
    except SelectorRuntimeError as error:
        return error.text


@pytest.mark.parametrize(
    ("text", "result"),
    [
        (f"{A}.nope || {A}.bool", True),
        (f"{A}.nope && {A}.bool", "no such key: nope"),
        (f'{A}.version == "1.2.3"', "no such overload"),
        (f'"1.2.3" == {A}.version', False),
        (f"{A}.version != 3", True),
        (f"[{A}.version] == [{A}.bool]", True),
        ('quantity("9").add(1) == quantity("10")', True),
        ('quantity("10") == quantity("9").add(1)', "no such overload"),
        ('quantity("5") in [quantity("4").add(1)]', False),
        ('quantity("4").add(1) in [quantity("5")]', True),
        (f'{A}.version in ["1.2.3"]', "internal error: runtime error: hash of unhashable type cel.Semver"),
        ("[1, 0].exists(n, 4 / n == 4) && [0, 1].exists(n, 4 / n == 4)", True),
        ('device.attributes["no.such"].size() == 0 && !("no.such" in device.attributes)', True),
        ('device.attributes[?"zz"].hasValue() && has(device.attributes.zz)', True),
        ("cel.bind(unused, 1 / 0, true)", True),
        ("dyn(1) == 1.0 && dyn(1u) == 1 && 1 in dyn([1.0])", True),
        ('[5, 6].transformMapEntry(i, v, {"same": v}).size() > 0', "insert failed: key same already exists"),
        ("[].min() == 1", "min called on empty list"),
        ("optional.none().value() == 1", "optional.none() dereference"),
        ("[1, 2][2] == 1", "index out of bounds: 2"),
        ('dyn([1])["a"] == 1', "unsupported index type 'string' in list"),
        ("dyn([1])[1.5] == 1", "unsupported index value 1.5 in list"),
        ("9223372036854775807 + 1 > 0", "integer overflow"),
        ("0u - 1u == 0u", "unsigned integer overflow"),
        ("-9223372036854775808 / -1 > 0", "integer overflow"),
        ("1 % 0 == 0", "modulus by zero"),
        ("-7 / 2 == -3 && -7 % 2 == -1", True),
        ("1.0 / 0.0 > 1.0 && !(0.0 / 0.0 == 0.0 / 0.0)", True),
        (
            f"{A}.string",
            "CEL result of type string could not be converted to bool: unsupported native conversion from string to 'bool'",
        ),
    ],
)
def test_quirks_of_the_server_are_kept(text, result):
    assert _result(text) == result


@pytest.mark.parametrize(
    "text",
    [
        # strings
        f'{A}.uni.substring(2, 4) == "öß" && {A}.uni.size() == 5 && {A}.uni.charAt(5) == ""',
        '"tacocat".indexOf("co", 3) == -1 && "abc".lastIndexOf("") == 3 && "abcabc".lastIndexOf("b", 3) == 1',
        '"a,b,c".split(",", 2) == ["a", "b,c"] && "abc".split("") == ["a", "b", "c"] && "a".split(",", 0) == []',
        '"hello".replace("l", "L", 1) == "heLlo" && "ab".replace("", "-") == "-a-b-"',
        r'strings.quote("a\"b\n") == "\"a\\\"b\\n\"" && "\u2003x\u00a0".trim() == "x" && "GRÖSSE".lowerAscii() == "grÖsse"',
        '["a", "b"].join("-") == "a-b" && "%s|%.1f|%x|%o|%b".format([[1, "a"], 2.25, 255, 8, true]) == "[1, \\"a\\"]|2.2|ff|10|1"',
        '"%f".format([1234567.891]) == "1,234,567.891000" && "%s".format([{"b": 1, "a": 2.5}]) == "{\\"a\\":2.500000, \\"b\\":1}"',
        # regex
        '"aXbX".find("[A-Z]") == "X" && "a1b2".findAll("[0-9]", 1) == ["1"] && "abc".findAll("x*").size() == 4',
        'matches("abc", "^a.c$") && "abc".matches("b") && !"abc".matches("(?i)B$")',
        # lists and sets
        "[[1], [2, 3]].flatten() == [1, 2, 3] && [1, 1, 2].distinct() == [1, 2] && [1, 2, 3].slice(1, 2) == [2]",
        '[3, 1, 2].sortBy(x, -x) == [3, 2, 1] && ["b", "a"].sort() == ["a", "b"] && lists.range(-1) == []',
        "[1, 2].first().value() == 1 && [1, 2].last().value() == 2 && !dyn([]).first().hasValue()",
        "sets.contains([1, 2], [2]) && sets.intersects([1], [1, 2]) && sets.equivalent([1, 2], [2, 1, 1])",
        '[duration("1s"), duration("2s")].sum() == duration("3s") && [1.5, 2.5].sum() == 4.0 && [].sum() == 0',
        "[1, 2].lastIndexOf(2) == 1 && [1, 2].isSorted() && [2, 1].max() == 2 && ['b', 'a'].min() == 'a'",
        # optionals
        "optional.of(2).optMap(n, n * n) == optional.of(4) && optional.none().orValue(3) == 3",
        '[?optional.none(), 1] == [1] && {?"a": optional.of(1), ?"b": optional.none()} == {"a": 1}',
        'optional.ofNonZeroValue("").or(optional.of("x")).value() == "x" && has(optional.of({"a": 1}).a)',
        "optional.unwrap([optional.of(1), optional.none()]) == [1] && [optional.of(1)].unwrapOpt() == [1]",
        # time
        'duration("1h30m") == duration("90m") && duration("1.5h").getMinutes() == 90 && string(duration("90s")) == "90s"',
        'timestamp("2024-02-29T12:00:00Z").getDayOfYear() == 59 && timestamp("2024-01-07T00:00:00Z").getDayOfWeek() == 0',
        'timestamp("2024-01-01T00:00:00Z").getHours("America/New_York") == 19',
        'timestamp("2024-01-01T00:00:00Z").getHours("-02:30") == 21',
        'string(timestamp("2024-01-01T00:00:00.50+02:00")) == "2024-01-01T00:00:00.5+02:00"',
        'timestamp("2024-01-01T00:00:00Z") - timestamp("2023-12-31T00:00:00Z") == duration("24h")',
        "int(timestamp(7)) == 7 && int(duration('1s')) == 1000000000",
        # conversions
        'string(1e20) == "1e+20" && string(0.1) == "0.1" && string(3u) == "3" && string(true) == "true"',
        'double("0x1p4") == 16.0 && int(-1.9) == -1 && uint("5") == 5u && bool("T") && bytes("é").size() == 2',
        "type(1) == int && type([]) == list && type(null) == null_type && type(type(1)) == type",
        # quantities and versions
        'quantity("2.5k").asInteger() == 2500 && !quantity("2.0").isInteger() && sign(quantity("-1")) == -1',
        f'{C}.memory.isGreaterThan(quantity("39Gi")) && {C}.frac.asApproximateFloat() == 1.5',
        'semver("01.02", true) == semver("1.2.0") && isSemver("1.0.0-rc.1+b") && !isSemver("v1.0.0")',
        # network and URLs
        'ip("::1").isLoopback() && ip("169.254.0.1").isLinkLocalUnicast() && ip("8.8.8.8").isGlobalUnicast()',
        'cidr("10.0.0.1/8") != cidr("10.0.0.0/8") && cidr("10.0.0.1/8").masked() == cidr("10.0.0.0/8")',
        'cidr("10.0.0.0/8").containsCIDR("10.1.0.0/16") && !cidr("10.0.0.0/8").containsIP("::1")',
        'string(cidr("10.0.0.1/8").ip()) == "10.0.0.1" && ip.isCanonical("::1") && !isIP("1.2.3.04") && !isIP("fe80::1%eth0")',
        'url("https://u:p@h:1/p%20q?a=b#f").getEscapedPath() == "/p%20q" && url("/p?x=1&x=2").getQuery().x == ["1", "2"]',
        'url("http://[::1]:80/").getHostname() == "::1" && isURL("/path") && !isURL("path") && !isURL("http://a b/")',
        # formats
        'format.dns1123Label().validate("A").hasValue() && !format.dns1123LabelPrefix().validate("a-").hasValue()',
        '!format.qualifiedName().validate("a.b/c_d").hasValue() && format.named("nope") == optional.none()',
        '!format.uuid().validate("123e4567-e89b-12d3-a456-426614174000").hasValue() && format.byte().validate("a").hasValue()',
        '!format.datetime().validate("2024-01-01T00:00:00Z").hasValue() && format.date().validate("2024-02-30").hasValue()',
        # messages
        'google.protobuf.Duration{seconds: 3} == duration("3s") && google.protobuf.Int64Value{value: 3} == 3',
    ],
)
def test_libraries_compute_what_the_server_computes(text):
    selector = compile_selector(text)
    view = prepare_device(DEVICES[0], DRIVER)
    assert selector.matches_view(view) is True
    assert selector.evaluate_carefully(view) is True


@pytest.mark.parametrize(
    ("attributes", "text"),
    [
        ({"v": {"version": "1.2"}}, "attribute v: parse semantic version: No Major.Minor.Patch elements found"),
        ({"v": {}}, "attribute v: unsupported attribute value"),
        ({"v": {"strings": ["a"]}}, "attribute v: unsupported attribute value"),
    ],
)
def test_one_invalid_attribute_makes_every_selector_fail_on_the_device(attributes, text):
    assert _result("true", {"attributes": attributes}) == text


def test_list_attributes_are_seen_where_the_version_has_them():
    device = {"attributes": {"l": {"strings": ["a", "b"]}}}
    gates = {"DRAListTypeAttributes": True}
    assert _result(f'{A}.l.includes("b")', device, kubernetes="1.36", gates=gates) is True
    assert _result(f'{A}.l.exists(x, x == "c")', device, kubernetes="1.36", gates=gates) is False
    assert _result(f'{A}.l.includes("b")', device, kubernetes="1.36") == "attribute l: unsupported attribute value"
    assert _result(f'{A}.l.includes("b")', device, kubernetes="1.37") is True


def _outcome(evaluate, view):
    values.begin_work()
    try:
        value = evaluate(view)
    except CelError as error:
        return "error", error.text
    except CelAbort as error:
        return "abort", error.text
    return "value", value if isinstance(value, bool) else type(value)


@given(st.integers(0, 2**32), st.integers(2, 6))
@settings(max_examples=400, deadline=None)
def test_the_quick_evaluator_agrees_with_the_careful_one(seed, depth):
    try:
        selector = compile_selector(expression(seed, depth), kubernetes="1.36", gates={"DRAConsumableCapacity": True})
    except SelectorCompileError:
        return
    quick = compile_program(selector.program, shows_sharing=True)
    if quick is None:
        return
    for device in DEVICES:
        view = prepare_device(device, DRIVER)
        careful = _outcome(selector.evaluate_carefully, view)
        if careful != ("abort", COST_EXCEEDED):
            assert _outcome(quick, view) == careful


_PIECES = st.lists(
    st.sampled_from(
        [
            *"()[]{}.,?:!-+*/%<>=&|'\"\\`#@ \n\t",
            "&&",
            "||",
            "==",
            "in",
            "1",
            "1u",
            "1.5",
            "x",
            "device",
            ".attributes",
            "true",
            "all(",
            "map(x,",
            "cel.bind(a,",
            "has(",
            "optMap(x,",
            "size(",
            '"""',
            "r'",
            "b'",
            "\\u",
            "é",
            "\U0001d538",
            "\x00",
            "�",
        ]
    ),
    max_size=40,
).map("".join)


def _answer(text, device):
    """Return the verdict, or the text of the error."""
    try:
        return compile_selector(text).matches(device, DRIVER)
    except (SelectorCompileError, SelectorRuntimeError) as error:
        return error.text


@given(st.one_of(st.text(max_size=80), _PIECES))
@settings(max_examples=600, deadline=None)
def test_any_text_gets_a_verdict_or_an_error(text):
    for device in DEVICES:
        assert _answer(text, device) in {True, False} or _answer(text, device)


def _nest(opening: str, core: str, closing: str, times: int) -> str:
    return opening * times + core + closing * times


def _bindings(count: int, step: str, last: str) -> str:
    chain = "".join(f"cel.bind(a{i + 1}, {step.format(f'a{i}')}, " for i in range(count))
    return f"cel.bind(a0, [1, 2], {chain}{last.format(f'a{count}')}{')' * (count + 1)}"


HOSTILE = {
    "quotes": '"' * 99_999,
    "nothing but semicolons": ";" * 99_999,
    "minus signs": "-" * 99_000 + "1 == 1",
    "exclamation marks": "!" * 99_000 + "true",
    "open brackets": "[" * 90_000,
    "long list": f"[{','.join(['1'] * 49_000)}].size() > 0",
    "long conjunction": " && ".join(["true"] * 12_000),
    "long text": "x" * 1_000_000,
    "deep lists": _nest("[", "", "]", 240) + " == []",
    "doubled targets": "optional.of(1)" + ".optMap(x, x)" * 200 + ".hasValue()",
    "doubled lists": _bindings(60, "{0} + {0}", "{0}.size() > 3"),
    "shared lists compared": _bindings(40, "[{0}, {0}]", "{0} == {0}"),
    "flattened again and again": _bindings(40, "[{0}, {0}, {0}].flatten()", "{0}.size() > 3"),
    "doubled types": _bindings(60, "{{'k': [{0}, {0}].size() > 0 ? {0} : {0}}}", "{0} == {0}"),
    "endless range": "lists.range(9223372036854775807).size() > 0",
    "nested loops": "lists.range(1000).all(x, lists.range(1000).all(y, lists.range(1000).all(z, true)))",
    "catastrophic pattern": f"'{'a' * 1000}'.matches('(a+)+b')",
    "large pattern": f"'a'.matches('{'(a|b)*' * 2000}')",
    "huge quantity": 'quantity("1e999999999").add(quantity("1")).isInteger()',
    "huge quantity compared": 'quantity("1e999999999").compareTo(quantity("1")) > 0',
    "huge quantity equated": 'quantity("1e999999999") == quantity("1e-999999999")',
    "huge quantity as a number": 'quantity("1e999999999").asApproximateFloat() > quantity("1e999999999").asInteger()',
    "elements of joined lists": _bindings(17, "{0} + {0}", "lists.range(20000).all(i, {0}[3] == 2)"),
    "the first and last of joined lists": _bindings(
        17, "{0} + {0}", "lists.range(20000).all(i, {0}.first() == {0}.last() || true)"
    ),
    "slices of joined lists": _bindings(17, "{0} + {0}", "lists.range(20000).all(i, {0}.slice(0, 1).size() == 1)"),
    "lists joined one by one": _bindings(200, "{0} + [1]", "lists.range(40000).all(i, {0}[0] == 1)"),
    "many different numbers": "lists.range(60000).distinct().size() > 0",
    "many numbers out of order": _bindings(
        0,
        "",
        "cel.bind(b, lists.range(60000).map(i, i * 7919 % 60013), [b, b, b, b, b, b, b, b].flatten().sort().size() > {0}.size())",
    ),
    "a list printed again and again": _bindings(
        11, "{0} + {0}", "lists.range(20000).all(i, '%s'.format([{0}]).size() > 0)"
    ),
    "an error raised again and again": "cel.bind(q, quantity('x'), lists.range(90000).all(i, q.isInteger() || q == q))",
    "quantities of many digits compared": "cel.bind(a, quantity('1e4000').add(1), cel.bind(b, quantity('1e4001'), "
    "lists.range(90000).all(i, a.isLessThan(b))))",
    "growing text": "cel.bind(a0, 'xx', "
    + "".join(f"cel.bind(a{i + 1}, '%s%s%s'.format([a{i}, a{i}, a{i}]), " for i in range(30))
    + "a30.size() > 3"
    + ")" * 31,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_answered_in_bounded_time(name):
    began = time.process_time()  # the time of this process: other work on the machine does not count
    assert _answer(HOSTILE[name], {}) is not None
    assert time.process_time() - began < 5


def test_an_error_that_is_raised_again_and_again_does_not_grow():
    """Each raise adds a line to the traceback of an error that is kept: 255 MB and 3 s for 80,000 of them."""
    selector = compile_selector("cel.bind(q, quantity('x'), lists.range(30).all(i, q.isInteger() || q == q))")
    with pytest.raises(SelectorRuntimeError) as caught:
        selector.matches({}, DRIVER)
    lines, error = 0, caught.value.__context__
    place = error.__traceback__ if error is not None else None
    while place is not None:
        lines, place = lines + 1, place.tb_next
    assert 0 < lines < 30


@pytest.mark.parametrize(
    "text",
    [
        "cel.bind(a, lists.range(5000) + lists.range(5000), a.all(i, a[i] == i && a[i] < 5000))",
        "cel.bind(a, lists.range(900) + lists.range(900), '%s'.format([a]).size() > 5000)",
    ],
)
def test_much_work_on_joined_lists_is_still_done(text):
    assert _answer(text, {}) is True


def test_an_evaluation_over_budget_is_stopped_with_the_servers_words():
    text = f"lists.range(1000).all(x, lists.range(1000).all(y, {A}.int == 7))"
    assert _result(text) == "operation cancelled: actual cost limit exceeded"


def test_the_comparisons_of_one_evaluation_do_not_count_against_another():
    assert _answer(HOSTILE["shared lists compared"], {}) == "operation cancelled: actual cost limit exceeded"
    assert _answer("[1, 2] == [1, 2] && {1: 2} == {1: 2}", {}) is True
    selector, view = (
        compile_selector("lists.range(300).map(x, [x]) == lists.range(300).map(x, [x])"),
        prepare_device({}, DRIVER),
    )
    assert all(selector.matches_view(view) for _ in range(3000 // 300))
    values._work.elements = 10**9
    assert selector.matches_view(view)


@pytest.mark.parametrize(
    ("pattern", "fault"),
    [
        (r"\Qa\E\C", r"invalid escape sequence: `\C`"),
        (r"[\C]", r"invalid escape sequence: `\C`"),
        (r"\Qx\Ea{9999999999}\C", "invalid repeat count: `{9999999999}`"),
        (r"\Q\C\E", ""),
        (r"\\C", ""),
    ],
)
def test_a_single_byte_is_refused_outside_of_quotes_only_as_by_go(pattern: str, fault: str) -> None:
    if not fault:
        compile_pattern(pattern)
        return
    with pytest.raises(BadPattern) as refused:
        compile_pattern(pattern)
    assert str(refused.value) == f"error parsing regexp: {fault}"
