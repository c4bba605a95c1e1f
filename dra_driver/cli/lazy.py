"""A group of commands whose modules are imported only when one of the commands is called.

In: a table of names. Out: a click group. `--help` is written, and names are completed, from the table alone.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import click
from click.shell_completion import CompletionItem


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """One command: the function that runs it ("package.module:function"), and its line in --help.

    `heading` is the heading under which --help lists it; with "" it is not listed. If `command` is "", the command has
    an entry point of its own, and the group does not run it.
    """

    command: str
    summary: str
    heading: str = "Commands"


class LazyGroup(click.Group):
    """Commands by name, from a table."""

    def __init__(self, *args: Any, table: Mapping[str, CommandEntry], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._table = table

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """List the commands in the order of the table."""
        return [name for name, entry in self._table.items() if entry.command]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the first word names. If there is none, the error suggests a similar name."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as fault:
            near = get_close_matches(args[0], [name for name, entry in self._table.items() if entry.heading], n=1)
            if not near or args[0].startswith("-"):
                raise
            raise click.UsageError(f"{fault.message} Did you mean {near[0]!r}?", ctx) from fault

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; return None if the table has no such name."""
        entry = self._table.get(cmd_name)
        if entry is None or not entry.command:
            return None
        module, _, function = entry.command.partition(":")
        command = getattr(importlib.import_module(module), function)
        assert isinstance(command, click.Command)  # noqa: S101
        if ctx is not None and ctx.resilient_parsing:
            _complete_values(command)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete a command's name from the table, without importing anything."""
        shown = {name: entry.summary for name, entry in self._table.items() if entry.heading}
        found = [CompletionItem(name, help=text) for name, text in shown.items() if name.startswith(incomplete)]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the table under its headings, without importing anything."""
        headings = dict.fromkeys(entry.heading for entry in self._table.values() if entry.heading)
        width = max(len(name) for name, entry in self._table.items() if entry.heading)
        for heading in headings:
            rows = [
                (name.ljust(width), entry.summary) for name, entry in self._table.items() if entry.heading == heading
            ]
            with formatter.section(heading):
                formatter.write_dl(rows)


def _complete_values(command: click.Command) -> None:
    """Let the parameters of a command be completed from profiles and the cluster if click has no values for them."""
    from dra_driver.cli.candidates.candidates import complete_parameter

    for parameter in command.params:
        own = parameter.shell_complete

        def answer(
            ctx: click.Context, typed: str, parameter: click.Parameter = parameter, own: Any = own
        ) -> list[CompletionItem]:
            found = complete_parameter(ctx, parameter, typed)
            return list(own(ctx, typed)) if found is None else found

        parameter.shell_complete = answer  # type: ignore[assignment,method-assign]
