"""Slices that equal earlier ones are not parsed again, and what is read is the same."""

import copy
import io
import json
import random
from pathlib import Path

import pytest
import yaml

from dra_driver.cli import main
from dra_driver.documents import json_stream
from dra_driver.views.objects.equal_slices import EqualSlices
from dra_driver.views.progress import NoProgress
from tests.cli.support.equal_slices import SELECTOR, is_replica, slices
from tests.cli.support.hostile.spoiling import places, spoiled
from tests.cli.support.hostile.texts import VALUES

BY_UUID = 'device.attributes["gpu.nvidia.com"].uuid.startsWith("GPU-1")'


def text_of(items: list, indent: int | None = None) -> bytes:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=indent).encode()


def read(raw: bytes) -> tuple[list, int]:
    """Return the entries that were read, with plain lists of devices, and how many of them were replicas."""
    found = json_stream.load_json(io.BytesIO(raw), EqualSlices(NoProgress("objects")))["items"]
    replicas = [one for one in found if isinstance(one, dict) and is_replica(one)]
    return [{**one, "spec": {**one["spec"], "devices": list(one["spec"]["devices"])}} if is_replica(one) else one
            for one in found], len(replicas)  # fmt: skip


@pytest.mark.parametrize("indent", [None, 1, 4])
def test_equal_slices_are_read_as_they_are_written(indent: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_stream, "_CHUNK", 5_000)
    items = [one for pair in zip(slices("dgx-h100=20"), slices("l40s=20"), strict=True) for one in pair]
    found, replicas = read(text_of(items, indent))
    assert found == items
    assert replicas == 40


def test_slices_with_a_difference_in_any_place_are_read_as_they_are_written() -> None:
    """Any value at any place of one slice among equal ones."""
    rng = random.Random(1)
    items = slices("t4=6")
    where = list(places(items[0]))
    for _ in range(100):
        made, number = list(items), rng.randrange(6)
        made[number] = spoiled(items[number], rng.choice(where), rng.choice(VALUES), gone=rng.random() < 0.2)
        raw = text_of(made)
        assert repr(read(raw)[0]) == repr(json.loads(raw)["items"])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"nodeName"', '"nodeName": "else", "nodeName"'),
        ('"attributes"', '"attributes": {"uuid": {"string": "x"}}, "attributes"'),
        ('"spec"', '"spec": {"nodeName": "x", "devices": [{"name": "x"}]}, "spec"'),
        ('"string": "gpu"', '"string": "x", "string": "gpu"'),
        ("GPU-", "GPU\\u002d"),
        ("GPU-", 'GPU-\\"'),
        ("GPU-", "GPÜ-"),
        ('"metadata"', '"status": null, "metadata"'),
    ],
)
def test_repeated_keys_and_escapes_are_read_as_by_the_json_module(old: str, new: str) -> None:
    plain = [json.dumps(one, ensure_ascii=False) for one in slices("t4=6")]
    for chosen in ({0}, {3}, {0, 3}, set(range(6))):
        texts = [one.replace(old, new) if number in chosen else one for number, one in enumerate(plain)]
        raw = ('{"kind": "List", "items": [' + ",".join(texts) + "]}").encode()
        assert read(raw)[0] == json.loads(raw)["items"]


def test_two_slices_of_one_node_are_both_kept(tmp_path: Path) -> None:
    first, *others = slices("t4=4")
    again = {**first, "spec": copy.deepcopy(first["spec"])}
    again["spec"]["devices"][0]["attributes"]["uuid"] = {"string": "GPU-other"}
    items = [first, *others, again]
    assert read(text_of(items))[0] == items


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
    """YAML with anchors is parsed as a whole, so that no slice in it is recognised by its text."""
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
