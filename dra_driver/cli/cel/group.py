"""`dra-driver cel`: the table of its commands. CEL selectors offline, with the scheduler's verdicts.

In: argv. Out: what the command prints.
"""

from __future__ import annotations

import click

from dra_driver.cli.lazy import CommandEntry, LazyGroup

_COMMANDS = {
    "test": CommandEntry("cel.match", "Which devices match, node by node."),
    "explain": CommandEntry("cel.explain", "Why: the value of every part, the deciding one, the nearest miss."),
    "lint": CommandEntry("cel.lint", "What compiles but hurts, and how to write it better."),
    "repl": CommandEntry("cel.repl", "Try expressions interactively, with completion from the devices at hand."),
    "check": CommandEntry("cel.check", "Many expressions from a JSON-lines file, for machines."),
}


@click.group(cls=LazyGroup, table=_COMMANDS)
def command() -> None:
    """Evaluate, explain and mend CEL selectors of DeviceClasses and ResourceClaims.

    Verdicts are those of the Kubernetes scheduler and API server; no cluster is needed. docs/selectors.md teaches
    selectors with examples for each command.
    """
