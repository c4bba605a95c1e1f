"""`dra-driver cel`: CEL selectors offline, with the scheduler's verdicts. The table of its commands.

In: argv. Out: what the command says. A command's module is imported when it is called.
"""

from __future__ import annotations

import importlib

import click

_COMMANDS = {
    "test": "Which devices match, node by node.",
    "explain": "Why: the value of every part, the deciding one, the nearest miss.",
    "lint": "What compiles but hurts, and how to write it better.",
    "repl": "Try expressions interactively, with completion from the devices at hand.",
    "check": "Many expressions from a JSON-lines file, for machines.",
}


class CelGroup(click.Group):
    """Commands by name from the table."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """List the commands in the order of the table."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import a command."""
        if cmd_name not in _COMMANDS:
            return None
        command = importlib.import_module(f"dra_driver.cli.cel_{cmd_name}").command
        assert isinstance(command, click.Command)  # noqa: S101
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the table without importing anything."""
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(cls=CelGroup)
def command() -> None:
    """Evaluate, explain and mend CEL selectors of DeviceClasses and ResourceClaims.

    Verdicts are those of the Kubernetes scheduler and API server; no cluster is needed. docs/selectors.md teaches
    selectors with examples for each command.
    """
