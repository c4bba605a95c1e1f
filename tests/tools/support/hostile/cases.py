"""Cases for commands that end by themselves: every hostile text and file as every argument, and spoiled objects."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from dra_driver.tools import main
from tests.tools.support.hostile.objects import BATCH, OBJECTS, SCENARIO
from tests.tools.support.hostile.spoiling import places, spoiled, yaml_of
from tests.tools.support.hostile.texts import TEXTS, VALUES

# Commands that serve until they are stopped, or start a whole node (`serving`).
SERVING = {"webhook", "demo"}
WRITTEN = {"bundle"}  # options that name a file to be written


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield all commands that end by themselves, with their paths."""
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        if isinstance(found, click.Group):
            yield from commands(found, (*path, name))
        elif name not in SERVING:
            yield (*path, name), found


def argument_cases(files: list[Path]) -> Iterator[list[str]]:
    """Try every command with every hostile text and file in every argument that takes a text."""
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
    """Yield without end cases of commands with objects that are wrong in one place."""
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
        ["cel", "batch", str(file)],
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
