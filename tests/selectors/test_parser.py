"""Lexer, parser and macros: what parses, where faults are reported, how deep text may nest."""

from __future__ import annotations

import pytest

from dra_driver.selectors import CompileErrorKind, SelectorCompileError, compile_selector
from dra_driver.selectors.check.declarations import declare
from dra_driver.selectors.parse.parser import parse
from dra_driver.selectors.parse.tree import Call, Comprehension, Select


def _parse(text):
    root, faults = parse(text, declare("1.35", None, "stored").macros, quotes_fields=False)
    assert not faults, faults
    return root


def _refused(text):
    with pytest.raises(SelectorCompileError) as caught:
        compile_selector(text)
    return caught.value


def _holds(text):
    return compile_selector(text).matches({}, "dra.example.com")


@pytest.mark.parametrize(
    "text",
    [
        "0x1f + 07 == 38",
        r'"\x41\u0042\103" == "ABC"',
        r'b"\xe9" == b"\351" && "\xe9" == "é"',
        '[1, 2,] == [1, 2] && {"k": 1,} == {"k": 1}',
        "[,] == [] && {,} == {}",
        'r\'\\d\' == \'\\\\d\' && R"""a"b""" == \'a"b\'',
        "'''a\nb''' == 'a\\nb'",
        "'''a\r\nb''' == 'a\\nb'",
        "- -1 == 1 && --1 == 1 && -1 == 0 - 1",
        "!!true // a comment",
        "1.5e3 == 1500.0 && .5 == 0.5 && 1e2 == 100.0",
        "18446744073709551615u > 0u && -9223372036854775808 < 0",
        "{'for': 1}.for == 1",
        "false ? false : true ? true : false",
    ],
)
def test_legal_text_means_what_the_language_says(text):
    assert _holds(text) is True


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("", (1, 0)),
        ("true &&", (1, 8)),
        ("device.", (1, 8)),
        ('"abc', (1, 1)),
        ("[1,2", (1, 5)),
        ("4.", (1, 3)),
        ("true ? false ? true : false : true", (1, 14)),
        ('"\\z" == "a"', (1, 1)),
        ("1 +\n * 2", (2, 2)),
        ("#", (1, 1)),
        ("größe", (1, 3)),
        ("f(1,)", (1, 5)),
        ("a.?b(1)", (1, 5)),
        ("device.in", (1, 8)),
    ],
)
def test_a_syntax_error_is_reported_where_the_server_reports_its_first(text, position):
    error = _refused(text)
    assert error.kind is CompileErrorKind.SYNTAX
    assert error.position == position


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("while == 1", "1:1: reserved identifier: while"),
        ("9223372036854775808 == 1", "1:1: invalid int literal"),
        ("18446744073709551616u == 1u", "1:1: invalid uint literal"),
        ("1e999 == 1.0", "1:1: invalid double literal"),
        (r'"\ud800" == ""', "1:1: invalid unicode code point"),
        (r'b"\u0041" == b""', "1:1: unable to unescape string"),
        ("device.`a-b` == 1", "1:8: unsupported syntax: '`'"),
        ("has(device)", "1:5: invalid argument to has() macro"),
        ("[1].all(x.y, true)", "1:10: argument must be a simple name"),
        ("[1].map(1, true)", "1:9: argument is not an identifier"),
        ("[1].exists(i, i, true)", "1:15: duplicate variable name: i"),
        ("[1].filter(__result__, true) == []", "1:12: iteration variable overwrites accumulator variable"),
        ("cel.bind(1, 2, true)", "1:10: cel.bind() variable names must be simple identifiers"),
        ("optional.of(1).optMap(1, 2)", "1:23: optMap() variable name must be a simple identifier"),
        ("{}.sortBy(x, x)", "1:1: sortBy can only be applied to a list"),
        ("[3, 4].existsOne(x, x == 3)", "1:17: undeclared reference to 'existsOne'"),
    ],
)
def test_other_faults_of_this_stage_have_the_servers_words(text, words):
    assert f"<input>:{words}" in _refused(text).text


def test_a_marker_line_keeps_its_width_under_wide_characters():
    assert _refused('"größe" == 1').text.splitlines()[2] == " | ...．．...^"  # noqa: RUF001
    assert _refused("\t1 == ''").text.splitlines()[1:] == [" |  1 == ''", " | ...^"]


@pytest.mark.parametrize(
    ("opening", "core", "closing", "maximum"),
    [
        ("(", "true", ")", 249),
        ("!(", "true", ")", 249),
        ("true == (", "true", ")", 124),
        ("false ? true : ", "true", "", 249),
    ],
)
def test_nesting_is_refused_exactly_where_the_server_refuses_it(opening, core, closing, maximum):
    compile_selector(opening * maximum + core + closing * maximum)
    deeper = maximum + 1
    error = _refused(opening * deeper + core + closing * deeper)
    assert "expression recursion limit exceeded: 250" in error.text


@pytest.mark.parametrize("step", [".a", "[0]"])
def test_a_chain_of_250_accesses_below_a_comparison_is_too_deep(step):
    compile_selector(f"dyn(1){step * 249} == 1")
    assert "max recursion depth exceeded" in _refused(f"dyn(1){step * 250} == 1").text


def test_a_chain_of_logical_operators_becomes_a_balanced_tree():
    root = _parse("a && b && c && d")
    assert isinstance(root, Call)
    assert [arg.function for arg in root.args if isinstance(arg, Call)] == ["_&&_", "_&&_"]
    assert root.offset == 7


def test_macros_expand_if_they_have_the_right_number_of_arguments():
    fold = _parse("[1].exists(x, x > 0)")
    assert isinstance(fold, Comprehension)
    assert fold.accu == "@result"
    assert isinstance(_parse("has(a.b)"), Select)
    assert isinstance(_parse("x.all(1, 2, 3, 4)"), Call)


def test_nodes_have_the_positions_of_their_text():
    text = ' (a.b["c"] == 1) && f( -2 )'
    root = _parse(text)
    assert text[root.start : root.end] == 'a.b["c"] == 1) && f( -2 )'
    assert [text[arg.start : arg.end] for arg in root.args] == ['a.b["c"] == 1', "f( -2 )"]


def told(text):
    with pytest.raises(SelectorCompileError) as caught:
        compile_selector(text)
    return [line.partition("<input>:")[2] for line in caught.value.text.splitlines() if "ERROR: " in line]


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("(device.driver == 'x'", ["1:22: Syntax error: missing ')' at '<EOF>'"]),
        ("device.driver == 'x')", ["1:21: Syntax error: extraneous input ')' expecting <EOF>"]),
        ("a..b", ["1:3: Syntax error: no viable alternative at input '..'"]),
        (
            "a. &b&\t.",
            [
                "1:4: Syntax error: token recognition error at: '&b'",
                "1:6: Syntax error: token recognition error at: '&\t'",
            ],
        ),
        ("a.null", ["1:3: Syntax error: mismatched input 'null' expecting IDENTIFIER"]),
        (
            "{'a', 'b'}",
            [
                "1:5: Syntax error: mismatched input ',' expecting ':'",
                "1:7: Syntax error: extraneous input ''b'' expecting '}'",
            ],
        ),
    ],
)
def test_errors_behind_the_first_one_are_told_as_the_server_tells_them(text, faults):
    found = told(text)
    assert found[: len(faults)] == faults


def test_recovery_gives_up_where_the_server_does():
    assert told("&& || " * 40)[-1].endswith("error recovery attempt limit exceeded: 30")
    assert told("a " * 300)[0] == "-1:0: error recovery token lookahead limit exceeded: 256"


def test_a_long_text_keeps_its_first_error_alone():
    assert len(told("(1 2) + " * 300)) > 1
    assert told("(1 2) + " * 600) == ["1:4: Syntax error: mismatched input '2' expecting ')'"]
