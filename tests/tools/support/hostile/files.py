"""Malicious and broken files: endless, nested, damaged, unreadable."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from tests.tools.support.hostile.objects import BATCH, OBJECTS, SCENARIO, SLICE


def hostile_files(folder: Path) -> list[Path]:
    """Make the files."""
    good = yaml.safe_dump_all(OBJECTS).encode()
    depth = 100_000
    contents: dict[str, bytes] = {
        "objects.yaml": good,
        "objects.json": json.dumps({"kind": "List", "items": OBJECTS}).encode(),
        "scenario.yaml": yaml.safe_dump(SCENARIO).encode(),
        "batch.jsonl": json.dumps(BATCH).encode() + b"\n",
        "empty.yaml": b"",
        "null.json": b"null",
        "number.json": b"1",
        "text.json": b'"x"',
        "list.json": b"[]",
        "deep.json": b"[" * depth + b"]" * depth,
        "deep-open.json": b"[" * depth,
        "deep-mapping.json": b'{"a":' * depth + b"1" + b"}" * depth,
        "deep-item.json": b'{"kind":"List","items":[' + b"[" * depth + b"]" * depth + b"]}",
        "deep-less.json": b'{"kind":"List","items":[{"kind":"ResourceSlice","a":' + b"[" * 900 + b"]" * 900 + b"}]}",
        "deep-attribute.json": json.dumps({"kind": "List", "items": [SLICE]})
        .replace('"int": 1', '"int": ' + "[" * 800 + "]" * 800)
        .encode(),
        "deep.yaml": b"kind: x\na: " + b"[" * depth,
        "deep-dashes.yaml": b"- " * depth,
        "deep-indent.yaml": b"".join(b" " * n + b"a:\n" for n in range(1500)),
        "deep-keys.yaml": b"? " * depth,
        "laughs.yaml": b"kind: x\na0: &a0 [x,x,x,x,x,x,x,x,x]\n"
        + b"".join(b"a%d: &a%d [%s]\n" % (n, n, b",".join([b"*a%d" % (n - 1)] * 9)) for n in range(1, 30)),
        "laughs-merged.yaml": b"kind: x\na0: &a0 {x: 1, y: 2}\n"
        + b"".join(b"a%d: &a%d {<<: [%s], z: 1}\n" % (n, n, b",".join([b"*a%d" % (n - 1)] * 9)) for n in range(1, 30)),
        "laughs-slice.yaml": good.replace(b"kind: ResourceSlice", b"kind: ResourceSlice\nx: &x [a]\ny: [*x, *x]"),
        "loop.yaml": b"&a [*a]",
        "loop-mapping.yaml": b"kind: ResourceSlice\nmetadata: &a\n  name: *a\nspec: *a\n",
        "tags.yaml": b"kind: !!python/object/apply:os.system ['true']\n",
        "set.yaml": b"kind: ResourceSlice\nmetadata: !!set {a, b}\n",
        "binary.yaml": b"kind: !!binary aGk=\nmetadata: {name: !!binary aGk=}\n",
        "dates.yaml": b"kind: Pod\nmetadata: {name: 2020-01-01}\n",
        "huge-int.json": b'{"kind": "ResourceSlice", "metadata": ' + b"9" * 100_000 + b"}",
        "huge-int.yaml": b"kind: ResourceSlice\nmetadata: " + b"9" * 100_000,
        "base-60.yaml": b"kind: Pod\nmetadata: " + b":".join([b"59"] * 30_000),
        "nan.json": b'{"kind": "ResourceSlice", "metadata": {"name": NaN}, "spec": Infinity}',
        "nul.yaml": b"kind: Pod\x00\nmetadata: {}",
        "nul.json": b'{"kind": "Pod\\u0000", "metadata": {"name": "\\u0000"}}',
        "surrogate.json": b'{"kind": "ResourceClaim", "metadata": {"name": "\\ud800"}, "spec": {}}',
        "surrogate-slice.json": json.dumps(SLICE).replace('"d"', '"\\ud800"').replace('"n"', '"\\udfff"').encode(),
        "not-utf-8.yaml": b"kind: \xff\xfe",
        "not-utf-8.json": b'{"kind": "\xff"}',
        "utf-16.json": json.dumps(SLICE).encode("utf-16"),
        "bom.yaml": b"\xef\xbb\xbf" + good,
        "bom.json": b"\xef\xbb\xbf" + json.dumps(SLICE).encode(),
        "tabs.yaml": b"kind:\tPod\n\tmetadata: x",
        "crlf.yaml": good.replace(b"\n", b"\r\n"),
        "unfinished.json": json.dumps(SLICE).encode()[:-20],
        "two.json": json.dumps(SLICE).encode() * 2,
        "twice.json": b'{"kind": "Pod", "kind": "Node", "items": [], "items": 1, "metadata": {}}',
        "long-line.yaml": b"kind: " + b"x" * 3_000_000,
        "many-documents.yaml": b"---\n" * 50_000,
        "many-objects.yaml": b"---\nkind: Pod\nmetadata: {name: x}\n" * 2_000,
        "items-number.json": b'{"kind": "List", "items": 3}',
        "items-mixed.json": b'{"kind": "List", "items": [1, null, "x", [], {}, {"kind": 1}, {"kind": "Pod"}]}',
        "kinds.json": json.dumps([{"kind": one["kind"]} for one in OBJECTS]).encode(),
        "bare.yaml": yaml.safe_dump_all([{"kind": one["kind"], "metadata": {"name": "x"}} for one in OBJECTS]).encode(),
    }  # fmt: skip
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    (folder / "circle").symlink_to(folder / "circle")
    (folder / "dangling").symlink_to(folder / "nothing")
    (folder / "folder").mkdir(exist_ok=True)
    (folder / "secret.yaml").write_bytes(good)
    (folder / "secret.yaml").chmod(0)
    return [*(folder / name for name in contents), *map(Path, folder.glob("circle")), folder / "circle",
            folder / "dangling", folder / "folder", folder / "secret.yaml", folder / "missing"]  # fmt: skip
