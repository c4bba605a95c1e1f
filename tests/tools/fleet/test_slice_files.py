"""Slices of many nodes in files: what is read is what is written, and what slices have in common is kept once."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from dra_driver.base.text.json_text import SharedValues
from dra_driver.base.text.yaml_values import TooDeepError, load_yaml
from dra_driver.tools import main
from dra_driver.tools.world.documents import load_text, read_documents
from tests.support.slices import SELECTOR, slices
from tests.tools.support.hostile.spoiling import places, spoiled
from tests.tools.support.hostile.texts import VALUES

BY_UUID = 'device.attributes["gpu.nvidia.com"].uuid.startsWith("GPU-1")'


class Plain(yaml.SafeDumper):
    """Writes no anchors, as kubectl does."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def text_of(items: list, indent: int | None = None) -> bytes:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=indent).encode()


def listed(items: list) -> bytes:
    content = {"apiVersion": "v1", "items": items, "kind": "List", "metadata": {"x": ""}}
    return yaml.dump(content, Dumper=Plain).encode()


def in_a_row(items: list) -> bytes:
    return "".join(f"---\n{yaml.dump(item, Dumper=Plain)}" for item in items).encode()


def read(raw: bytes) -> list:
    return load_text(raw.decode(), "slices", SharedValues().share)[0]["items"]


@pytest.mark.parametrize("indent", [None, 1, 4])
def test_slices_are_read_as_they_are_written(indent: int | None) -> None:
    items = [*slices("dgx-h100=3"), *slices("l40s=3"), 17, -1.5, "\u00fc\U0001f600", None, []]
    assert read(text_of(items, indent)) == items


def test_slices_with_a_difference_in_any_place_are_read_as_they_are_written() -> None:
    """Any value at any place of one slice among equal ones."""
    rng = random.Random(1)
    items = slices("t4=6")
    where = list(places(items[0]))
    for _ in range(100):
        made, number = list(items), rng.randrange(6)
        made[number] = spoiled(items[number], rng.choice(where), rng.choice(VALUES), gone=rng.random() < 0.2)
        raw = text_of(made)
        assert repr(read(raw)) == repr(json.loads(raw)["items"])


def test_slices_in_yaml_with_a_difference_in_any_place_are_read_as_they_are_written() -> None:
    rng, compared = random.Random(1), 0
    items = slices("t4=3")
    where = list(places(items[0]))
    for _ in range(40):
        made, number = list(items), rng.randrange(3)
        made[number] = spoiled(items[number], rng.choice(where), rng.choice(VALUES), gone=rng.random() < 0.2)
        try:
            text = rng.choice([listed, in_a_row])(made).decode()
            plain = list(load_yaml(text))
        except (yaml.YAMLError, TooDeepError, RecursionError):
            continue
        compared += 1
        assert repr(list(load_yaml(text, SharedValues().share))) == repr(plain)
    assert compared > 20


@pytest.mark.parametrize("written", [text_of, listed, in_a_row])
def test_what_slices_have_in_common_is_in_memory_once(written: Callable[[list], bytes], tmp_path: Path) -> None:
    (tmp_path / "slices").write_bytes(written(slices("t4=3")))
    first, *others = [document.wire for document in read_documents([str(tmp_path / "slices")])]
    assert len(others) == 2
    device = first["spec"]["devices"][0]
    for other in others:
        found = other["spec"]["devices"][0]
        assert found["capacity"] is device["capacity"]
        assert found["attributes"]["type"] is device["attributes"]["type"]
        assert found["attributes"]["uuid"] != device["attributes"]["uuid"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"nodeName"', '"nodeName": "else", "nodeName"'),
        ('"attributes"', '"attributes": {"uuid": {"string": "x"}}, "attributes"'),
        ("GPU-", 'GPU-\\"'),
        ("GPU-", "GPÜ-"),
        ('"metadata"', '"status": null, "metadata"'),
    ],
)
def test_repeated_keys_and_escapes_are_read_as_by_the_json_module(old: str, new: str) -> None:
    texts = [json.dumps(item, ensure_ascii=False).replace(old, new) for item in slices("t4=3")]
    raw = ('{"kind": "List", "items": [' + ",".join(texts) + "]}").encode()
    assert read(raw) == json.loads(raw)["items"]


def commands(claim: Path, source: Path) -> list[list[str]]:
    distinct = claim.with_name("distinct.yaml")
    return [
        ["slices", "-f", str(source)],
        ["slices", "-f", str(source), "-o", "json"],
        ["explain", "claim", "one", "-f", str(claim), "-f", str(source)],
        ["explain", "claim", "one", "-f", str(claim), "-f", str(source), "-o", "json"],
        ["explain", "claim", "distinct", "-f", str(distinct), "-f", str(source), "-o", "json"],
        ["simulate", "-f", str(claim), "-f", str(source), "-o", "json"],
        ["simulate", "-f", str(distinct), "-f", str(source), "-o", "json"],
        ["cel", "test", "-e", SELECTOR, str(source)],
        ["cel", "test", "-e", BY_UUID, str(source), "-o", "json"],
        ["cel", "test", "-e", SELECTOR, str(source), "-o", "json"],
        ["cel", "test", "-e", SELECTOR, str(source), "--by-device"],
    ]


def worst_first(out: str) -> object:
    """Return an output with its nodes in order, because many nodes are not in the order of the file."""
    if not out.startswith("{") or "queries" not in (found := json.loads(out)):
        return out
    for query in found["queries"]:
        rows = []
        for row in query["nodes"]:
            names = sorted([row.pop("node"), *row.pop("like", ())])
            rows.append((names, json.dumps(row).replace('"pool": "' + names[0], '"pool": "')))
        query["nodes"] = [(names, len(row)) for names, row in sorted(rows)]
    return found


@pytest.mark.parametrize("profiles", [["t4=26", "l40s=3"], ["demo-h100=2"]])
def test_commands_print_the_same_for_slices_in_json_and_in_yaml(
    profiles: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 2}}]}}
    claim = {"kind": "ResourceClaim", "metadata": {"name": "one", "namespace": "default"}, "spec": spec}
    (tmp_path / "claim.yaml").write_text(yaml.safe_dump(claim))
    constrained = {"devices": {**spec["devices"], "constraints": [{"matchAttribute": "gpu.nvidia.com/nvlinkDomain"}]}}
    other = {**claim, "metadata": {"name": "distinct", "namespace": "default"}, "spec": constrained}
    (tmp_path / "distinct.yaml").write_text(yaml.safe_dump(other))
    items = slices(*profiles)
    random.Random(2).shuffle(items)
    (tmp_path / "json").mkdir()
    (tmp_path / "yaml").mkdir()
    as_json, as_yaml = tmp_path / "json" / "slices", tmp_path / "yaml" / "slices"
    as_json.write_bytes(text_of(items, 2))
    as_yaml.write_text("kind: &list List\n" + yaml.safe_dump({"items": items, "metadata": {}}, sort_keys=False))
    for one, another in zip(
        commands(tmp_path / "claim.yaml", as_json), commands(tmp_path / "claim.yaml", as_yaml), strict=True
    ):
        results = []
        for arguments in (one, another):
            status = main.run(arguments)
            out = capsys.readouterr()
            results.append(
                (status, worst_first(out.out.replace("/yaml/", "/json/")), out.err.replace("/yaml/", "/json/"))
            )
        assert results[0] == results[1], one


def test_the_gate_of_a_field_in_equal_slices_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    items = slices("t4=5")
    for one in items:
        one["spec"]["devices"][0]["taints"] = [{"key": "a", "effect": "NoSchedule"}]
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
    claim = {"kind": "ResourceClaim", "metadata": {"name": "one"}, "spec": {"devices": {"requests": [request]}}}
    (tmp_path / "all.json").write_bytes(text_of([*items, claim]))
    assert main.run(["simulate", "-f", str(tmp_path / "all.json")]) == 0
    assert "DRADeviceTaints" in "".join(capsys.readouterr())


def test_standard_input_is_read_like_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    outputs = set()
    items = slices("t4=5")
    for raw in (listed(items), in_a_row(items), text_of(items)):
        (tmp_path / "slices").write_bytes(raw)
        for source in (str(tmp_path / "slices"), "-"):
            with (tmp_path / "slices").open() as file:
                monkeypatch.setattr("sys.stdin", file)
                main.run(["cel", "test", "-e", SELECTOR, source])
            outputs.add(capsys.readouterr().out.partition("rules of")[2])
    assert len(outputs) == 1
    assert "20 match" in outputs.pop()
