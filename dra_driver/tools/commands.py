"""The table of commands.

In: nothing. Out: the group `cli`, and the group `cel_command` below it. The module of a command is imported when the
command is run or its help is shown.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import click
from click.shell_completion import CompletionItem

from dra_driver import __version__

# A group of commands whose modules are imported only when one of the commands is called.


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
    from dra_driver.tools.completion import complete_parameter

    for parameter in command.params:
        own = parameter.shell_complete

        def answer(
            ctx: click.Context, typed: str, parameter: click.Parameter = parameter, own: Any = own
        ) -> list[CompletionItem]:
            found = complete_parameter(ctx, parameter, typed)
            return list(own(ctx, typed)) if found is None else found

        parameter.shell_complete = answer  # type: ignore[assignment,method-assign]


_LOOK, _WHY, _CHANGE, _RUN = "Look", "Ask why", "Change", "Run"
_UNLISTED = ""  # a Job of the chart runs the command

COMMANDS: dict[str, CommandEntry] = {
    "slices": CommandEntry(
        "dra_driver.tools.fleet.slices:slices_command", "The fleet as a tree: node, GPU, partition, claim, pod.", _LOOK
    ),
    "claims": CommandEntry(
        "dra_driver.tools.fleet.claims:claims_command", "Claims as a tree, with their devices and pods.", _LOOK
    ),
    "in-use": CommandEntry(
        "dra_driver.tools.fleet.slices:in_use_command",
        "Claims that hold devices of this driver, and their pods.",
        _LOOK,
    ),
    "devices": CommandEntry(
        "dra_driver.tools.fleet.devices:devices_command",
        "What this node would publish, and what is wrong with it.",
        _LOOK,
    ),
    "console": CommandEntry(
        "dra_driver.tools.servers:console_command", "The fleet, claims and selectors in a browser.", _LOOK
    ),
    "usage": CommandEntry(
        "dra_driver.tools.usage.command:usage_command",
        "What GPUs were used for, what that cost, what could be saved.",
        _LOOK,
    ),
    "explain": CommandEntry(
        "dra_driver.tools.explain.commands:explain_command", "Why claims and pods fit or do not, node by node.", _WHY
    ),
    "simulate": CommandEntry(
        "dra_driver.tools.explain.commands:simulate_command",
        "What the scheduler would do, on files or on the cluster as it is.",
        _WHY,
    ),
    "cel": CommandEntry(
        "dra_driver.tools.commands:cel_command",
        "CEL selectors offline: test, explain, lint, verify, record, repl, lsp, batch.",
        _WHY,
    ),
    "doctor": CommandEntry(
        "dra_driver.tools.doctor.command:doctor_command",
        "What is wrong on this node or in the cluster, the evidence, how to fix it.",
        _WHY,
    ),
    "check-config": CommandEntry(
        "dra_driver.tools.check_config:check_config_command",
        "Check files for the agents before they are rolled out.",
        _CHANGE,
    ),
    "cordon": CommandEntry(
        "dra_driver.tools.node.commands:cordon_command",
        "Take a device of this node out of use; its pods stay.",
        _CHANGE,
    ),
    "uncordon": CommandEntry("dra_driver.tools.node.commands:uncordon_command", "End the cordon of a device.", _CHANGE),
    "release": CommandEntry(
        "dra_driver.tools.node.commands:release_command",
        "Devices that wait for a container to end; release one by force.",
        _CHANGE,
    ),
    "validate": CommandEntry(
        "dra_driver.tools.node.validation:validate_command", "Test the free devices of this node.", _WHY
    ),
    "health": CommandEntry(
        "dra_driver.tools.node.commands:health_command",
        "Faults and cordons of this node; forget a GPU that is gone.",
        _WHY,
    ),
    "remediation": CommandEntry(
        "dra_driver.tools.node.commands:remediation_command",
        "GPUs that need a reset or a reboot: show, retry, give up.",
        _CHANGE,
    ),
    "migrate": CommandEntry(
        "dra_driver.tools.migrate.command:migrate_command",
        "Turn manifests written for the device plugin into claims.",
        _CHANGE,
    ),
    "demo": CommandEntry(
        "dra_driver.tools.demo:demo_command",
        "Run the driver from end to end on this machine: no GPU, no cluster.",
        _RUN,
    ),
    "agent": CommandEntry("", "The node daemon: publishes GPUs and prepares claims (see agent --help).", _RUN),
    "mps": CommandEntry("", "The MPS supervisor: runs the control daemons of shared GPUs (see mps --help).", _RUN),
    "webhook": CommandEntry(
        "dra_driver.tools.servers:webhook_command",
        "The admission webhook: refuses invalid configs, warns of selectors.",
        _RUN,
    ),
    "console-server": CommandEntry(
        "dra_driver.tools.servers:console_server_command",
        "The console in a cluster: each viewer sees what they may read.",
        _RUN,
    ),
    "completion": CommandEntry(
        "dra_driver.tools.main:completion_command",
        "Print the completion script for bash, zsh or fish.",
        _RUN,
    ),
    "pod-security": CommandEntry(
        "dra_driver.tools.output:pod_security_command", "Set the namespace's Pod Security label.", _UNLISTED
    ),
    "uninstall-check": CommandEntry(
        "dra_driver.tools.fleet.slices:uninstall_check_command",
        "Refuse to uninstall while claims hold devices.",
        _UNLISTED,
    ),
}

_EPILOG = """\b
Exit status of every command:
  0   done, and all is well
  1   nothing matches, nothing fits, or there are findings
      (slices, claims, devices: with --exit-code only)
  2   the command line is wrong
  3   a file or an expression is wrong
  4   a device would abort scheduling
  5   something is missing (driver, permission, API server),
      or the answer is not known because something may not be read
  70  a bug in dra-driver
"""


@click.group(
    cls=LazyGroup,
    table=COMMANDS,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, message="dra-driver %(version)s")
def cli() -> None:
    """GPUs for Kubernetes Dynamic Resource Allocation."""


# The option `--exit-code`, with which a command for people ends with status 1 if there are findings, for scripts.

exit_code_option = click.option("--exit-code", "fails", is_flag=True, help="End with 1 if there are findings.")


_CEL_COMMANDS = {
    "test": CommandEntry("dra_driver.tools.cel.match:cel_test_command", "Which devices match, node by node."),
    "explain": CommandEntry(
        "dra_driver.tools.cel.match:cel_explain_command",
        "Why a selector matches devices or not: the value of each part, the nearest miss.",
    ),
    "lint": CommandEntry(
        "dra_driver.tools.cel.lint:cel_lint_command",
        "Selectors that compile but cause trouble, and how to write them better.",
    ),
    "verify": CommandEntry(
        "dra_driver.tools.cel.verify:cel_verify_command", "Tests of selectors: what must match, and what must not."
    ),
    "record": CommandEntry(
        "dra_driver.tools.cel.verify:cel_record_command", "Write a file of tests from what matches today."
    ),
    "repl": CommandEntry(
        "dra_driver.tools.cel.repl:cel_repl_command",
        "Try expressions interactively, with completion from the given devices.",
    ),
    "lsp": CommandEntry(
        "dra_driver.tools.cel.repl:cel_lsp_command",
        "Serve an editor: faults, completion and matches of selectors in YAML and JSON.",
    ),
    "batch": CommandEntry(
        "dra_driver.tools.cel.lint:cel_batch_command",
        "Evaluate many expressions for another program, one on each line.",
    ),
}


@click.group(cls=LazyGroup, table=_CEL_COMMANDS)
def cel_command() -> None:
    """Evaluate, explain and improve the CEL selectors of DeviceClasses and ResourceClaims.

    The verdicts are those of the Kubernetes scheduler and API server; no cluster is needed. docs/selectors.md teaches
    selectors, with examples for each command.
    """
