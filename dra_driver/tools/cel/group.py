"""`dra-driver cel`: the table of its commands, which evaluate CEL selectors offline with the scheduler's verdicts."""

from __future__ import annotations

import click

from dra_driver.tools.commands import CommandEntry, LazyGroup

_COMMANDS = {
    "test": CommandEntry("dra_driver.tools.cel.match:cel_test_command", "Which devices match, node by node."),
    "explain": CommandEntry(
        "dra_driver.tools.cel.match:cel_explain_command",
        "Why a selector matches devices or not: the value of each part, the nearest miss.",
    ),
    "lint": CommandEntry(
        "dra_driver.tools.cel.lint:cel_lint_command",
        "Selectors that compile but cause trouble, and how to write them better.",
    ),
    "repl": CommandEntry(
        "dra_driver.tools.cel.repl:cel_repl_command",
        "Try expressions interactively, with completion from the given devices.",
    ),
    "batch": CommandEntry(
        "dra_driver.tools.cel.lint:cel_batch_command",
        "Evaluate many expressions for another program, one on each line.",
    ),
}


@click.group(cls=LazyGroup, table=_COMMANDS)
def cel_command() -> None:
    """Evaluate, explain and improve the CEL selectors of DeviceClasses and ResourceClaims.

    The verdicts are those of the Kubernetes scheduler and API server; no cluster is needed. docs/selectors.md teaches
    selectors, with examples for each command.
    """
