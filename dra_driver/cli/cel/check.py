"""`dra-driver cel check --batch FILE`: the name that `cel batch` had in 0.1, for programs.

--help does not list it.

In: JSON lines. Out: what `cel batch` writes.
"""

from __future__ import annotations

import click

from dra_driver.cli.cel.batch import answer_file


@click.command(name="check")
@click.option("--batch", "path", required=True, metavar="FILE", help="JSON lines; - for standard input")
def command(path: str) -> int:
    """Judge many expressions: the former name of `dra-driver cel batch FILE`.

    \b
    echo '{"id": 1, "expression": "true"}' | dra-driver cel check --batch -
    """  # noqa: D301
    return answer_file(path)
