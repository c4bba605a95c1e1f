"""Examples of rewriting: aliases, comments, line ends, and texts that were once rewritten wrongly."""

from __future__ import annotations

import pytest
import yaml

from dra_driver.base.text.alignment import is_same
from dra_driver.base.text.change_writer import BlockEntries
from tests.tools.migrate.support.rewriting import read, rewritten, rewritten_and_checked


def test_the_value_of_an_alias_is_written_out_where_it_changes():
    text = "a: &x {k: 1}\nb: *x\nc: *x\n"

    def change(value):
        value["b"]["k"] = 2

    assert rewritten(text, change)[0] == "a: &x {k: 1}\nb:\n  k: 2\nc: *x\n"


def test_aliases_stay_where_the_anchor_and_all_of_them_change_alike():
    text = "a: &x\n  k: 1\nb: *x\n"

    def change(value):
        value["a"]["k"] = value["b"]["k"] = 2

    assert rewritten(text, change)[0] == "a: &x\n  k: 2\nb: *x\n"


def test_the_value_of_an_alias_is_kept_when_its_anchor_is_removed():
    text = "a: &x\n  k: 1\nb: *x\n"
    made, _ = rewritten(text, lambda value: value.pop("a"))
    assert made == "b:\n  k: 1\n"
    assert read(made) == {"b": {"k": 1}}


def test_an_entry_of_a_merge_key_can_be_removed():
    text = "a: &x {n: 1, m: 2}\nb:\n  <<: *x\n  k: 3\n"
    made, _ = rewritten(text, lambda value: value["b"].pop("m"))
    assert read(made) == {"a": {"n": 1, "m": 2}, "b": {"n": 1, "k": 3}}


def test_a_scalar_in_the_place_of_another_keeps_its_comment_beside_it():
    def swap(value):
        inner = value["h"]
        inner.pop("old")
        inner["new"] = "8"

    assert rewritten("h:\n  old: '4' # four\n", swap)[0] == "h:\n  new: '8' # four\n"


def test_line_ends_of_windows_are_kept():
    text = "a:\r\n  b: 1\r\n  c: 2\r\nd: 3\r\n"

    def change(value):
        del value["a"]["c"]
        value["e"] = {"f": [1]}

    made, _ = rewritten(text, change)
    assert made.count("\n") == made.count("\r\n")
    assert read(made) == {"a": {"b": 1}, "d": 3, "e": {"f": [1]}}


def without(*path):
    """Return a change that removes the value at a path."""

    def change(value):
        for step in path[:-1]:
            value = value[step]
        del value[path[-1]]

    return change


def instead(value, new):
    """Replace the pairs of a mapping by others, in their order."""
    value.clear()
    value.update(new)


def with_first(value):
    """Put a key between one that is removed and one that is kept, in a list's item."""
    value["a"][0] = {"n": [1], "c": value["a"][0]["c"]}


def restarted(value):
    item = value["a"][0]
    del item["b"], item["x"], item["c"]["f"]
    item["c"]["new"] = 1


OF_ONE_ITEM = "a:\n- b: 1\n  x: 2\n  c:\n    d: 1\n    f: 3  # last\nz: 1\n"


@pytest.mark.parametrize(
    ("text", "change", "expected"),
    [
        (OF_ONE_ITEM, restarted, "a:\n- c:\n    d: 1\n    new: 1  # last\nz: 1\n"),
        ("a:\n- b: 1\n  x: 2\n  c: 3\n", with_first, None),
        (
            "h:\n  a: 1\n  old: x  # note\n  b: 2\n",
            lambda v: instead(v["h"], {"a": 1, "new": "x", "more": {"q": 1}, "b": 2}),
            None,
        ),
        (
            "h:\n  a: 1\n  old: x  # note\n  b: 2\n",
            lambda v: v["h"].pop("old") and v["h"].update(new="x"),
            "h:\n  a: 1\n  # note\n  b: 2\n  new: x\n",
        ),
        ("a: &x 1\nb: *x\n", lambda v: v.update(a=2, b=2), "a: &x 2\nb: *x\n"),
        ("a: &x\n  b: &y 1\nc: *y\n", lambda v: v.update(a=["s"]), "a: &x\n- s\nc: 1\n"),
        ("a: |  # note\n  foo\nb: 1\n", lambda v: v.update(a="bar"), "a: bar  # note\nb: 1\n"),
        ("k:\n- a\n- b\nz: 1\n", lambda v: v.update(k={"m": 1}), "k:\n  m: 1\nz: 1\n"),
        ("k:\n- - {a: 1}\n  - {b: 1}\nz: 1\n", without("k", 0, 0), "k:\n- - {b: 1}\nz: 1\n"),
        ("k: 1  # one\nz: 1\n", lambda v: v.update(k={"s": "x\ny\n"}), "k:\n  # one\n  s: |\n    x\n    y\nz: 1\n"),
        ("k:\n\nz: 1\n", lambda v: v.update(k="v"), "k: v\n\nz: 1\n"),
        ("k:\n-\n\n- {a: 1}\n", lambda v: v["k"].__setitem__(0, "v"), "k:\n- v\n\n- {a: 1}\n"),
        ("k: [a,]\n", lambda v: v.update(k=[]), "k: []\n"),
        ("k: {\n  a: 1, # one\n  b: 2 # two\n}\n", without("k", "b"), None),
        ("k: {a: {b: 1 # one\n  }, c: 2}\n", lambda v: v["k"].update(a=3, d=4), None),
        ("a: 'x'\n", lambda v: v.update(a="\u2028\x7f"), 'a: "\\u2028\\u007f"\n'),
        ("k:\n  a: 1\n  s: |\n    # text\n    it's\n  b: 2\n", without("k", "s"), "k:\n  a: 1\n  b: 2\n"),
        ("k:\n  a: it's # one\n  b: it's # two\n", lambda v: v.update(k="x"), "k:\n  # one\n    x # two\n"),
        ("<<: &m {a: 1}\nb: 2\n", lambda v: instead(v, {"b": 2, "a": 1}), "b: 2\na: 1\n"),
        ("a: {x: 1}\nb: 2\n", lambda v: instead(v, {"b": 2, "a": v["a"]}), "b: 2\na:\n  x: 1\n"),
    ],
)
def test_a_text_that_was_once_rewritten_wrongly_is_right_part_by_part(text, change, expected):
    made, value = rewritten(text, change)
    assert is_same(read(made), value), made
    assert yaml.safe_load(made) == value
    assert expected is None or made == expected
    assert all(note in made for note in ("# note", "# one", "# two", "# last") if note in text), made


def test_a_value_that_cannot_be_changed_part_by_part_is_written_anew_and_nothing_around_it():
    text = "# head\na:\n  b: 1  # one\n  c:\n    s: |\n      last line"  # an added line would end the text in a newline

    def change(value):
        value["a"]["c"]["new"] = 1

    made, value, found = rewritten_and_checked(text, change)
    assert is_same(read(made), value)
    assert found.rewritten == (("a", "c"),)
    assert found.lost == ()
    assert made.startswith("# head\na:\n  b: 1  # one\n")


def test_a_comment_that_is_lost_is_named(monkeypatch):
    def remove_lines(self, edits, start, end):
        edits.add(start, self.text.index("\n", end) + 1, "")

    monkeypatch.setattr(BlockEntries, "_remove_lines", remove_lines)
    made, _, found = rewritten_and_checked("a: 1\nb: 2  # two\nc: 3\n", without("b"))
    assert made == "a: 1\nc: 3\n"
    assert found.lost == ("# two",)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("!!str 1", "1"),
        ("!!str true", "true"),
        ("!!str", ""),
        ("! 8", "8"),
        ("!!int '8'", 8),
        ('!!bool "true"', True),
        ("!!null ''", None),
    ],
)
def test_a_tag_decides_the_type_of_a_value(written, value):
    assert is_same(read(f"a: {written}\n"), {"a": value})


def test_a_tagged_text_that_moves_is_quoted():
    made, _ = rewritten("a: {n: !!str 8}\n", lambda value: value.update({"b": value.pop("a")}))
    assert read(made) == yaml.safe_load(made) == {"b": {"n": "8"}}
