"""Slices in YAML that equal earlier ones are not parsed again, and what is read is the same."""

import io
import json
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import yaml

from dra_driver.cli import main
from dra_driver.documents import spooled_stream, yaml_stream, yaml_text
from dra_driver.documents.yaml_values import TooDeepError, load_yaml
from dra_driver.views.objects.equal_slices import EqualSlices
from dra_driver.views.progress import NoProgress
from tests.cli.support.equal_slices import SELECTOR, is_replica, slices
from tests.cli.support.hostile.spoiling import places, spoiled
from tests.cli.support.hostile.texts import VALUES


class Plain(yaml.SafeDumper):
    """Writes no anchors, as kubectl does."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def listed(items: list) -> str:
    return yaml.dump({"apiVersion": "v1", "items": items, "kind": "List", "metadata": {"x": ""}}, Dumper=Plain)


def in_a_row(items: list) -> str:
    return "".join(f"---\n{yaml.dump(one, Dumper=Plain)}" for one in items)


def plain(value: object) -> object:
    """Return a value with plain lists of devices."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    return value if isinstance(value, str | int | float | bool | None) else [plain(one) for one in value]


def read(text: str) -> list:
    return yaml_stream.load_yaml_stream(io.BytesIO(text.encode()), EqualSlices(NoProgress("objects")))


@cache
def five(written: Callable[[list], str]) -> str:
    """Return the slices of five equal nodes as a text; it is kept, because PyYAML takes long to write it."""
    return written(slices("t4=5"))


def check(text: str) -> bool:
    """Return whether a text can be read piece by piece; if so, check that the result equals that of the whole text."""
    try:
        found = read(text)
    except (ValueError, TooDeepError, yaml.YAMLError):
        return False
    assert repr(plain(found)) == repr(list(load_yaml(text)))
    return True


def indented(items: list) -> str:
    """Return a List whose entries are two columns to the right."""
    inner = "\n".join(f"  {line}" for line in yaml.dump(items, Dumper=Plain).splitlines())
    return f"apiVersion: v1\nkind: List\nitems:\n{inner}\nmetadata: {{}}\n"


@pytest.mark.parametrize("written", [listed, in_a_row, indented])
def test_equal_slices_are_read_as_they_are_written(written, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_stream, "_CHUNK", 5_000)
    items = [one for pair in zip(slices("dgx-h100=9"), slices("l40s=9"), strict=True) for one in pair]
    text = written(items)
    found = read(text)
    entries = found[0]["items"] if isinstance(found[0].get("items"), list) else found
    assert plain(entries) == items
    assert sum(map(is_replica, entries)) == 18


def test_slices_with_a_difference_in_any_place_are_read_as_they_are_written() -> None:
    rng = random.Random(1)
    items = slices("t4=4")
    where = list(places(items[0]))
    read_in_pieces = 0
    for _ in range(60):
        made, number = list(items), rng.randrange(4)
        made[number] = spoiled(items[number], rng.choice(where), rng.choice(VALUES), gone=rng.random() < 0.2)
        try:
            text = rng.choice([listed, in_a_row])(made)
            list(load_yaml(text))
        except (yaml.YAMLError, TooDeepError, RecursionError):
            continue
        read_in_pieces += check(text)
    assert read_in_pieces > 20


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("GPU-", "'GPU-"), ("GPU-", '"GPU-'), ("string: gpu", "string: &a gpu"), ("string: gpu", "string: *a"),
        ("string: gpu", "string: !!str gpu"), ("string: gpu", "string: |\n            gpu"),
        ("string: gpu", "string: gpu\n            more"), ("string: gpu", "string: yes"), ("string: gpu", "string: 12"),
        ("string: gpu", "string: 0000:10:00.0"), ("string: gpu", "string: 2025-01-01"), ("string: gpu", "string: ~"),
        ("string: gpu", "string: {a: b}"), ("string: gpu", "string: gpu # not seen"), ("string: gpu", "string: [gpu"),
        ("string: gpu", "string:\tgpu"), ("string: gpu", "string: gpu\n          string: other"),
        ("string: gpu", "string: 'it''s'"), ("string: gpu", 'string: "\\u0041"'), ("string: gpu", 'string: "Ü"'),
        ("kind: ResourceSlice", "kind: ResourceSlice\n# between\n"), ("kind: List", "kind: List\nitems:\n- x"),
        ("kind: List", "- more"), ("kind: List", "---\nkind: List"), ("apiVersion: v1\n", "apiVersion: &b v1\n"),
        ("\n- ", "\n-   "), ("\n", "\r\n"), ("\n- ", "\n...\n- "), ("\n- ", "\n---\n- "),
        ("items:\n", "items: # all\n"),
        ("items:\n", "items:\n\n# first\n"), ("metadata:\n    name", "metadata: &c\n    name"), ("\n---\n", "\n--- \n"),
        ("\n---\n", "\n--- {}\n"), ("\n---\n", "\n---\n---\n"), ("\n---\n", "\n...\n---\n"),
        ("---\n", "%YAML 1.1\n---\n"),
        ("\n---\n", "\n   ---\n"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("written", [listed, in_a_row])
def test_every_form_of_yaml_is_read_piece_by_piece_as_it_is_as_a_whole(written, old: str, new: str) -> None:
    text = five(written)
    at = [place for place in range(len(text)) if text.startswith(old, place)]
    for place in {at[0], at[len(at) // 2], at[-1]} if at else ():
        check(text[:place] + new + text[place + len(old) :])
    check(text.replace(old, new))


@pytest.mark.parametrize("written", [listed, in_a_row])
def test_a_text_that_ends_too_early_is_read_piece_by_piece_as_it_is_as_a_whole(written) -> None:
    text = five(written)
    for cut in (1, 2, len(text) // 2, len(text) // 3):
        check(text[:-cut])


@pytest.mark.parametrize("word", ["yes", "No", "ON", "null", "~", "1e3", "0x10", "1_0", "12:30:45", ".inf", "true", ""])
def test_a_word_that_is_not_a_text_in_yaml_keeps_its_type(word: str) -> None:
    made = slices("t4=5")
    for one in made:
        one["metadata"]["name"] = "NAME"
    head, *rest = listed(made).split("NAME")
    text = "".join(
        part + name for part, name in zip([head, *rest], ["a-1", "a-2", word, "a-3", "a-4", ""], strict=True)
    )
    assert check(text) or word in {"null", "~", ""}


def test_every_text_that_is_recognised_as_a_word_is_a_text_for_yaml() -> None:
    rng, found = random.Random(3), 0
    for _ in range(20_000):
        word = "".join(rng.choices("aeEfnoOtrsuyxXYN019.-_:/", k=rng.randrange(1, 9)))
        if yaml_text._WORD.fullmatch(word):
            found += 1
            assert list(load_yaml(f"a: {word}\n")) == [{"a": word}]
    assert found > 1000


def test_standard_input_is_read_like_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(spooled_stream, "MAX_MEMORY", 4096)
    outputs = set()
    items = slices("t4=5")
    for text in (listed(items), in_a_row(items), json.dumps({"kind": "List", "items": items})):
        (tmp_path / "slices").write_text(text)
        for source in (str(tmp_path / "slices"), "-"):
            with (tmp_path / "slices").open() as file:
                monkeypatch.setattr("sys.stdin", file)
                main.run(["cel", "test", "-e", SELECTOR, source])
            outputs.add(capsys.readouterr().out.partition("rules of")[2])
    assert len(outputs) == 1
    assert "20 match" in outputs.pop()
