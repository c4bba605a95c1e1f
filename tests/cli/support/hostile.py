"""Hostile inputs: files, arguments and objects that nobody means well with, and a way to run a command on them.

`python -m tests.cli.support.hostile [--cases N] [--seed N]` goes on for as many cases as wanted and lists what ended in
a traceback, or did not end.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import yaml

from dra_driver.cli import main
from dra_driver.model.errors import ExitCode

ROOT = Path(__file__).resolve().parents[3]
SECONDS = 20
SLOW_SECONDS = 3
BYTES = 4 << 30  # of address space
Wire = dict[str, Any]

# Commands that go on until they are told to end, or start a whole node: only their arguments are fuzzed, elsewhere.
NOT_HERE = {"webhook", "demo"}
WRITTEN = {"bundle"}  # options that name a file to be written
DRIVER = "gpu.nvidia.com"
CLAIM_SPEC: Wire = {
    "devices": {
        "requests": [
            {
                "name": "gpu",
                "exactly": {
                    "deviceClassName": DRIVER,
                    "allocationMode": "ExactCount",
                    "count": 1,
                    "selectors": [{"cel": {"expression": f'device.attributes["{DRIVER}"].type == "gpu"'}}],
                    "tolerations": [{"key": "a", "operator": "Exists", "effect": "NoSchedule"}],
                    "capacity": {"requests": {"memory": "1Gi"}},
                },
            },
            {"name": "any", "firstAvailable": [{"name": "a", "deviceClassName": DRIVER, "allocationMode": "All"}]},
        ],
        "constraints": [{"requests": ["gpu"], "matchAttribute": f"{DRIVER}/index"}],
        "config": [{"requests": ["gpu"], "opaque": {"driver": DRIVER, "parameters": {"kind": "GpuConfig"}}}],
    }
}
SLICE: Wire = {
    "kind": "ResourceSlice",
    "apiVersion": "resource.k8s.io/v1",
    "metadata": {"name": "s"},
    "spec": {
        "driver": DRIVER,
        "nodeName": "n",
        "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
        "sharedCounters": [{"name": "set", "counters": {"memory": {"value": "80Gi"}}}],
        "perDeviceNodeSelection": False,
        "devices": [
            {
                "name": "d",
                "attributes": {"type": {"string": "gpu"}, "index": {"int": 1}, "v": {"version": "1.0.0"}},
                "capacity": {"memory": {"value": "80Gi", "requestPolicy": {"validRange": {"min": "1Gi"}}}},
                "taints": [{"key": "a", "effect": "NoSchedule", "value": "b"}],
                "consumesCounters": [{"counterSet": "set", "counters": {"memory": {"value": "1Gi"}}}],
                "allowMultipleAllocations": True,
                "bindingConditions": ["a"],
            },
            {"name": "e", "attributes": {"type": {"string": "gpu"}}, "nodeSelector": {"nodeSelectorTerms": []}},
        ],
    },
}
TERM: Wire = {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}
OBJECTS: list[Wire] = [
    SLICE,
    {
        **SLICE,
        "metadata": {"name": "t"},
        "spec": {**SLICE["spec"], "nodeName": "", "nodeSelector": {"nodeSelectorTerms": [TERM]}},
    },
    {"kind": "ResourceClaim", "metadata": {"name": "c", "namespace": "default", "uid": "u"}, "spec": CLAIM_SPEC},
    {
        "kind": "ResourceClaim",
        "metadata": {"name": "held", "namespace": "default"},
        "spec": CLAIM_SPEC,
        "status": {
            "reservedFor": [{"resource": "pods", "name": "p", "uid": "u"}],
            "allocation": {
                "devices": {
                    "results": [
                        {
                            "request": "gpu",
                            "driver": DRIVER,
                            "pool": "n",
                            "device": "d",
                            "shareID": "x",
                            "consumedCapacity": {"memory": "1Gi"},
                        }
                    ]
                }
            },
        },
    },
    {"kind": "ResourceClaimTemplate", "metadata": {"name": "t", "namespace": "default"}, "spec": {"spec": CLAIM_SPEC}},
    {
        "kind": "DeviceClass",
        "metadata": {"name": DRIVER},
        "spec": {
            "extendedResourceName": "nvidia.com/gpu",
            "selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}],
            "config": [{"opaque": {"driver": DRIVER, "parameters": {}}}],
        },
    },
    {
        "kind": "Node",
        "metadata": {"name": "n", "labels": {"a": "b"}},
        "spec": {"taints": [{"key": "k", "effect": "NoSchedule"}], "unschedulable": False},
    },
    {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"name": "p", "namespace": "default", "uid": "u"},
        "spec": {
            "resourceClaims": [
                {"name": "g", "resourceClaimName": "c"},
                {"name": "h", "resourceClaimTemplateName": "t"},
            ],
            "containers": [
                {"name": "x", "image": "i", "resources": {"limits": {"nvidia.com/gpu": 1}, "claims": [{"name": "g"}]}}
            ],
            "tolerations": [{"key": "k", "operator": "Exists"}],
            "nodeSelector": {"a": "b"},
            "affinity": {
                "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [TERM]}}
            },
        },
        "status": {"resourceClaimStatuses": [{"name": "h", "resourceClaimName": "c"}], "phase": "Pending"},
    },
]
SCENARIO: Wire = {
    "kubernetes": "1.36",
    "gates": {"DRAPartitionableDevices": True},
    "fleet": {"l40s": 1},
    "files": ["objects.yaml"],
    "timeline": [
        {"arrive": {"name": "a", "count": 2, "requests": CLAIM_SPEC["devices"]["requests"], "constraints": []}},
        {"arrive": {"file": "objects.yaml"}},
        {"leave": "a-1"},
        {"drain": "l40s-1"},
        {"undrain": "l40s-1"},
        {"lose": "l40s-1/gpu-0000-38-00-0"},
        {"restore": "l40s-1/gpu-0000-38-00-0"},
        {"replace": {"node": "l40s-1", "fleet": "t4"}},
    ],
}
BATCH: Wire = {
    "id": "a",
    "kubernetes": "1.35",
    "input": {
        "features": {"PartitionableDevices": True},
        "nodes": [OBJECTS[6]],
        "classes": [OBJECTS[5]],
        "slices": OBJECTS[:2],
        "allocated": [OBJECTS[3]],
        "claims": [OBJECTS[2]],
    },
}
VALUES: list[Any] = [
    None, True, 0, -1, 1.5, 10**30, 2**63, float("nan"), float("inf"), "", "x", "\x00", "\ud800", "é\u202e",
    "x" * 100_000,
    "1e999999999", "-1", "9" * 5000, [], {}, [None], [[]], {"x": None}, {"": ""}, {1: 2}, [{}], "device.", "(" * 3000,
]  # fmt: skip
TEXTS = [
    "", "-", "--", "=", "a=b=c", "l40s=", "l40s=-1", "l40s=99999999999999999999", "=3", "x" * 300, "x" * 5000,
    "x" * 200_000, "a/" * 3000, "\udcff", "é" * 200, "\n", "/", "/dev/null", "/dev/zero", "/proc/self/mem",
    "~", "*", "1.35", "99.99", "-1", "DRAPartitionableDevices=true", "nan", "((((", "simulated:",
    "simulated:" + "x" * 5000, "nvidia", "auto", "'", "[", "{", "$(x)", "%s%n", "default", "c", "p", DRIVER,
]  # fmt: skip


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


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """List the ways to all values in a value."""
    yield path
    rows = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in rows:
        yield from places(inner, (*path, key))


def spoiled(value: Any, path: tuple[Any, ...], by: Any, *, gone: bool) -> Any:
    """Return a value with something else, or nothing, in one place."""
    if not path:
        return by
    made = copy.deepcopy(value)
    inner = made
    for step in path[:-1]:
        inner = inner[step]
    if gone:
        del inner[path[-1]]
    else:
        inner[path[-1]] = by
    return made


class TooSlowError(Exception):
    """A command did not end."""


def _ring(*_: Any) -> None:
    raise TooSlowError


def ran(arguments: list[str], stdin: bytes = b"") -> tuple[int, str]:
    """Run a command in this process; give its status and what it said, for a bug with the traceback."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.TextIOWrapper(io.BytesIO(), "utf-8")
    before = sys.stdin
    signal.signal(signal.SIGALRM, _ring)
    signal.alarm(SECONDS)
    try:
        sys.stdin = io.TextIOWrapper(io.BytesIO(stdin), "utf-8")
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main.run(arguments)
    except BaseException:  # a traceback is what is looked for
        status = ExitCode.BUG
        print(traceback.format_exc(), file=err)
    finally:
        signal.alarm(0)
        sys.stdin = before
    err.flush()
    return status, err.buffer.getvalue().decode("utf-8", "replace")


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """List all commands."""
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        if isinstance(found, click.Group):
            yield from commands(found, (*path, name))
        elif name not in NOT_HERE:
            yield (*path, name), found


def argument_cases(files: list[Path]) -> Iterator[list[str]]:
    """Try every command with every hostile text and file in every place that takes a text."""
    shared = files[0].parent / "objects.yaml"
    for path, command in commands(main.cli):
        base = {("explain",): ["claim", "c"]}.get(path, [])
        for parameter in command.params:
            if isinstance(parameter, click.Option) and (parameter.is_flag or parameter.name in WRITTEN):
                continue
            for text in [*TEXTS, *map(str, files)]:
                if isinstance(parameter, click.Option):
                    option = parameter.opts[0]
                    given = [f"{option}={text}"] if option.startswith("--") else [option, text]
                    yield [*path, *base, *_with_objects(path, shared), *given]
                else:
                    yield [*path, *(base[:-1] if base else []), "--", text]
                    yield [*path, *_with_objects(path, shared), *(base[:-1] if base else []), "--", text]


def _with_objects(path: tuple[str, ...], file: Path) -> list[str]:
    if path[0] in {"slices", "claims", "explain", "simulate"}:
        return ["-f", str(file)]
    return ["-e", "true", "--fleet", "l40s"] if path[0] == "cel" else []


def object_cases(folder: Path, rng: random.Random) -> Iterator[list[str]]:
    """Try commands with objects that have something wrong in one place, over and over."""
    file, scenario, batch = folder / "one.json", folder / "one.yaml", folder / "one.jsonl"
    claim = ["explain", "claim", "c", "-f", str(file), "--kubernetes", "1.36"]
    readers = [
        ["slices", "-f", str(file)],
        ["slices", "-f", str(file), "-o", "json"],
        ["claims", "-f", str(file)],
        claim,
        ["explain", "pod", "p", "-f", str(file), "--fleet", "l40s=30", "-o", "json"],
        ["simulate", "-f", str(file), "--fleet", "l40s=2"],
        ["simulate", "-f", str(file), "--kubernetes", "1.37", "-o", "yaml"],
        ["cel", "test", str(file)],
        ["cel", "test", str(file), "--fleet", "l40s=30", "-o", "json"],
        ["cel", "lint", str(file), "--fleet", "l40s"],
        ["cel", "explain", str(file), "--fleet", "l40s"],
        ["cel", "check", str(file)],
        ["migrate", str(file)],
        ["migrate", str(file), "--fleet", "l40s", "--diff"],
    ]
    where = {id(one): list(places(one)) for one in (*OBJECTS, SCENARIO, BATCH)}
    while True:
        kind = rng.randrange(8)
        by, gone = rng.choice(VALUES), rng.random() < 0.2
        if kind == 0:
            wire = spoiled(SCENARIO, rng.choice(where[id(SCENARIO)]), by, gone=gone)
            scenario.write_text(yaml_of(wire), encoding="utf-8", errors="surrogatepass")
            yield ["simulate", str(scenario), *rng.choice([[], ["-o", "json"], ["--add-nodes", "t4"]])]
            continue
        if kind == 1:
            wire = spoiled(BATCH, rng.choice(where[id(BATCH)]), by, gone=gone)
            batch.write_text(json.dumps(wire) + "\n", encoding="utf-8")
            yield ["simulate", "--batch", str(batch)]
            continue
        number = rng.randrange(len(OBJECTS))
        made = copy.copy(OBJECTS)
        made[number] = spoiled(OBJECTS[number], rng.choice(where[id(OBJECTS[number])]), by, gone=gone)
        file.write_text(json.dumps({"kind": "List", "items": made}), encoding="utf-8")
        yield rng.choice(readers)


def yaml_of(wire: Any) -> str:
    """Write YAML, also of what YAML can't say."""
    try:
        return yaml.safe_dump(wire, allow_unicode=True)
    except (yaml.YAMLError, UnicodeError):
        return json.dumps(wire)


def fuzz(
    cases: int, seed: int, *, arguments: bool = True, share: float = 1.0, seconds: float = 1e9
) -> tuple[Counter[int], list[tuple[list[str], str]]]:
    """Run so many cases of objects, and a share of those of arguments; give the statuses, and what was a bug."""
    rng, statuses, bugs = random.Random(seed), Counter[int](), []
    with tempfile.TemporaryDirectory() as name:
        files = hostile_files(Path(name))
        given = object_cases(Path(name), rng)
        todo = [case for case in argument_cases(files) if rng.random() < share] if arguments else []
        rng.shuffle(todo)
        began_all = time.monotonic()
        for number in range(len(todo) + cases):
            if time.monotonic() - began_all > seconds:
                break
            case = todo[number] if number < len(todo) else next(given)
            began = time.monotonic()
            status, said = ran(case)
            if (took := time.monotonic() - began) > SLOW_SECONDS:
                print(f"slow: {took:.1f} s: {[one[:80] for one in case]}", file=sys.stderr, flush=True)
            statuses[status] += 1
            if status == ExitCode.BUG:
                print(f"bug: {[one[:120] for one in case]}\n  {said.strip()[-700:]}", file=sys.stderr, flush=True)
                kept = {path.name: path.read_text()[:400_000] for path in Path(name).glob("one.*")}
                bugs.append((case, said + (json.dumps(kept)[-3000:] if number >= len(todo) else "")))
    return statuses, bugs


def run_all() -> int:
    """Run as a program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-arguments", action="store_true")
    parser.add_argument("--share", type=float, default=1.0, help="of the cases of arguments")
    parser.add_argument("--seconds", type=float, default=1e9, help="after which no case is begun")
    options = parser.parse_args()
    os.chdir(tempfile.gettempdir())
    os.environ.update(KUBECONFIG="", HOME="/nonexistent")
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (BYTES, most))
    statuses, bugs = fuzz(
        options.cases, options.seed, arguments=not options.no_arguments, share=options.share, seconds=options.seconds
    )
    seen = Counter("\n".join(said.split("\n  File ")[-1:])[:600] for _, said in bugs)
    for text, count in seen.most_common():
        example = next(case for case, said in bugs if text in said)
        print(f"== {count} times: {[one[:120] for one in example]}\n{text}")
    print(f"{sum(statuses.values())} cases, statuses {dict(statuses)}, {len(bugs)} bugs of {len(seen)} kinds")
    return bool(bugs)


if __name__ == "__main__":
    sys.exit(run_all())
