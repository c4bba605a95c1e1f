"""`dra-driver simulate`: what the scheduler would do, without a cluster.

In: problems, one JSON object per line. Out: the allocator's answer per node, one JSON object per line. It reads only.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import IO, Any

import click

from dra_driver.model.errors import ExitCode, InputError
from dra_driver.model.wire import Wire


@click.command(name="simulate")
@click.option("--batch", "batch", required=True, metavar="FILE", help="Problems, one JSON object per line; - is stdin.")
def command(batch: str) -> int:
    """Allocate offline, with the scheduler's own answers.

    \b
    Each line of the batch file is
      {"id": …, "kubernetes": "1.35", "input": {features, nodes, classes, slices, allocated, claims}}
    with objects as the API holds them, and is answered by
      {"id": …, "nodes": {name: {"ok", "results", "category", "error"}}}

    Exit status 3: a line is not such a problem (it is answered by {"id", "error"}, the others are answered as usual).
    """  # noqa: D301
    faults = 0
    with click.open_file(batch, encoding="utf-8") as stream:
        for answer in _answers(stream):
            faults += "error" in answer
            sys.stdout.write(json.dumps(answer, separators=(",", ":")) + "\n")
    if faults:
        print(f"dra-driver: {faults} lines of {batch} are wrong [input.batch]", file=sys.stderr)
    return ExitCode.BAD_INPUT if faults else ExitCode.OK


def _answers(stream: IO[Any]) -> Iterator[Wire]:
    from dra_driver.allocation import simulate_batch_line

    for number, text in enumerate(stream, 1):
        if not text.strip():
            continue
        line: Wire = {}
        try:
            line = json.loads(text)
            yield simulate_batch_line(line)
        except (InputError, ValueError, KeyError, TypeError, AttributeError) as fault:
            found = line.get("id") if isinstance(line, dict) else None
            yield {"id": found, "error": f"line {number}: {type(fault).__name__}: {fault}"}
