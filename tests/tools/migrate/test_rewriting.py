"""Texts changed to hold another value: they read back as that value, and everything else in them stays the same.

Texts are made by hypothesis: nested blocks, braces, quotes, comments, several indentations; values change anywhere.
"""

from __future__ import annotations

import copy
import json
import re

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.base.errors import InputError
from dra_driver.base.text.alignment import is_same
from tests.tools.migrate.support.rewriting import read, rewritten

WORDS = st.text("abcxyz-", min_size=1, max_size=6).filter(lambda w: w.strip("-") == w)
SCALARS = st.one_of(
    WORDS,
    st.sampled_from(["on", "no", "1", "1.5", "0777", "a: b", "it's", 'say "x"', "# none", "", "y", "1e3", "null", "~"]),
    st.integers(-5, 10**9),
    st.booleans(),
    st.none(),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=14,
)
ROOTS = st.dictionaries(WORDS, VALUES, min_size=1, max_size=5)


class Writer:
    """Writes a value as a person might: with comments and empty lines where they are allowed, and braces in places."""

    def __init__(self, draw):
        self.draw = draw
        self.step = draw(st.sampled_from([2, 4]))
        self.dash = draw(st.sampled_from([0, 2]))
        self.comments = 0

    def note(self):
        self.comments += 1
        return f"# note {self.comments}"

    def maybe(self, text):
        return text if self.draw(st.integers(0, 4)) == 0 else ""

    def scalar(self, value):
        if isinstance(value, str):
            style = self.draw(st.sampled_from(["plain", "'", '"']))
            if style == "plain" and re.fullmatch(r"[a-z-]+", value) and value not in {"on", "no", "y", "null"}:
                return value
            return json.dumps(value) if style == '"' else "'" + value.replace("'", "''") + "'"
        return json.dumps(value)

    def flow(self, value):
        if isinstance(value, dict):
            return "{" + ", ".join(f"{k}: {self.flow(v)}" for k, v in value.items()) + "}"
        if isinstance(value, list):
            return "[" + ", ".join(map(self.flow, value)) + "]"
        return self.scalar(value)

    def block(self, value, indent):
        """Return lines of a mapping or list that is not empty."""
        pad = " " * indent
        lines = []
        if isinstance(value, dict):
            for key, inner in value.items():
                lines += self.above(pad)
                lines += self.entry(f"{pad}{key}:", inner, indent, self.step)
            return lines
        for inner in value:
            lines += self.above(pad)
            if isinstance(inner, dict) and inner and self.draw(st.booleans()):
                nested = self.block(inner, indent + 2)
                first = next(i for i, line in enumerate(nested) if line.strip() and not line.strip().startswith("#"))
                nested[first] = f"{pad}- {nested[first][indent + 2 :]}"
                lines += nested
            else:
                lines.append(f"{pad}- {self.flow(inner)}{self.tail()}")
        return lines

    def above(self, pad):
        return [row for row in (self.maybe(f"{pad}{self.note()}"), self.maybe("\n")) if row.strip()]

    def tail(self):
        return self.maybe(f"  {self.note()}")

    def entry(self, head, value, indent, step):
        if not isinstance(value, dict | list) or not value or self.draw(st.integers(0, 2)) == 0:
            return [f"{head} {self.flow(value)}{self.tail()}"]
        deeper = indent + (self.dash if isinstance(value, list) else step)
        return [head + self.tail(), *self.block(value, deeper)]


@st.composite
def texts(draw):
    writer = Writer(draw)
    root = draw(ROOTS)
    return "\n".join(writer.block(root, 0)) + "\n"


def changed(draw, value, depth=0):
    """Change a value in place at a few random places."""
    if isinstance(value, dict):
        for key in list(value):
            action = draw(st.integers(0, 7))
            if action == 0:
                del value[key]
            elif action == 1 and not isinstance(value[key], dict | list):
                value[key] = draw(SCALARS)
            else:
                changed(draw, value[key], depth + 1)
        for _ in range(draw(st.integers(0, 1))):
            value[f"new{draw(st.integers(0, 9))}"] = draw(VALUES)
    elif isinstance(value, list):
        for item in list(value):
            if isinstance(item, dict | list):
                if draw(st.integers(0, 6)) == 0:
                    value[:] = [one for one in value if one is not item]
                else:
                    changed(draw, item, depth + 1)
        if all(isinstance(item, dict) for item in value) and draw(st.integers(0, 2)) == 0:
            value.insert(draw(st.integers(0, len(value))), {"fresh": draw(SCALARS)})


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_changed_text_reads_back_as_the_value_and_keeps_its_comments(data):
    text = data.draw(texts())
    made, value = rewritten(text, lambda value: changed(data.draw, value))
    if value:
        assert is_same(read(made), value), made
        assert sorted(re.findall(r"# note \d+", made)) == sorted(re.findall(r"# note \d+", text)), made


@settings(max_examples=60, deadline=None)
@given(texts())
def test_a_text_that_is_not_changed_stays_byte_for_byte(text):
    assert rewritten(text, lambda value: None)[0] == text


@settings(max_examples=60, deadline=None)
@given(texts())
def test_a_text_is_read_as_pyyaml_reads_it(text):
    assert is_same(read(text), copy.deepcopy(yaml.safe_load(text)))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_json_stays_json(data):
    root = data.draw(ROOTS)
    text = json.dumps(root, indent=data.draw(st.sampled_from([None, 2, 4])))
    made, value = rewritten(text, lambda value: changed(data.draw, value))
    assert is_same(json.loads(made), value), made


@pytest.mark.parametrize(
    "text",
    ["a: *x\n", "a: {b: 1\n", "a: 1\na: 2\n", "[" * 300, "a: &x [*x]\n"],
    ids=["alias", "open", "twice", "deep", "ring"],
)
def test_a_text_that_is_not_yaml_is_refused(text):
    with pytest.raises(InputError) as caught:
        read(text)
    assert caught.value.code == "input.not-yaml"


def test_aliases_that_multiply_are_refused():
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    with pytest.raises(InputError, match="more than 500000 values"):
        read("\n".join(rows))
