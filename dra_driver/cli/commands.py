"""The table of commands.

In: nothing. Out: the group `cli`. The module of a command is imported when the command is run or its help is shown.
"""

from __future__ import annotations

import click

from dra_driver import __version__
from dra_driver.cli.lazy import CommandEntry, LazyGroup

_LOOK, _WHY, _CHANGE, _RUN = "Look", "Ask why", "Change", "Run"
_UNLISTED = ""  # a Job of the chart runs the command

COMMANDS: dict[str, CommandEntry] = {
    "slices": CommandEntry(
        "dra_driver.cli.fleet.slices:slices_command", "The fleet as a tree: node, GPU, partition, claim, pod.", _LOOK
    ),
    "claims": CommandEntry(
        "dra_driver.cli.fleet.claims:claims_command", "Claims as a tree, with their devices and pods.", _LOOK
    ),
    "in-use": CommandEntry(
        "dra_driver.cli.fleet.in_use:in_use_command", "Claims that hold devices of this driver, and their pods.", _LOOK
    ),
    "devices": CommandEntry(
        "dra_driver.cli.fleet.devices:devices_command",
        "What this node would publish, and what is wrong with it.",
        _LOOK,
    ),
    "console": CommandEntry(
        "dra_driver.cli.console:console_command", "The fleet, claims and selectors in a browser.", _LOOK
    ),
    "usage": CommandEntry(
        "dra_driver.cli.cost.command:usage_command",
        "What GPUs were used for, what that cost, what could be saved.",
        _LOOK,
    ),
    "explain": CommandEntry(
        "dra_driver.cli.simulate.explain:explain_command", "Why claims and pods fit or do not, node by node.", _WHY
    ),
    "simulate": CommandEntry(
        "dra_driver.cli.simulate.command:simulate_command",
        "What the scheduler would do, on files or on the cluster as it is.",
        _WHY,
    ),
    "cel": CommandEntry(
        "dra_driver.cli.cel.group:cel_command", "CEL selectors offline: test, explain, lint, repl, batch.", _WHY
    ),
    "doctor": CommandEntry(
        "dra_driver.cli.doctor:doctor_command",
        "What is wrong on this node or in the cluster, the evidence, how to fix it.",
        _WHY,
    ),
    "check-config": CommandEntry(
        "dra_driver.cli.check_config:check_config_command",
        "Check files for the agents before they are rolled out.",
        _CHANGE,
    ),
    "cordon": CommandEntry(
        "dra_driver.cli.health.cordon:cordon_command", "Take a device of this node out of use; its pods stay.", _CHANGE
    ),
    "uncordon": CommandEntry("dra_driver.cli.health.uncordon:uncordon_command", "End the cordon of a device.", _CHANGE),
    "release": CommandEntry(
        "dra_driver.cli.health.release:release_command",
        "Devices that wait for a container to end; release one by force.",
        _CHANGE,
    ),
    "validate": CommandEntry(
        "dra_driver.cli.health.validate:validate_command", "Test the free devices of this node.", _WHY
    ),
    "health": CommandEntry(
        "dra_driver.cli.health.group:health_command",
        "Faults and cordons of this node; forget a GPU that is gone.",
        _WHY,
    ),
    "remediation": CommandEntry(
        "dra_driver.cli.health.remediation:remediation_command",
        "GPUs that need a reset or a reboot: show, retry, give up.",
        _CHANGE,
    ),
    "migrate": CommandEntry(
        "dra_driver.cli.migrate.command:migrate_command",
        "Turn manifests written for the device plugin into claims.",
        _CHANGE,
    ),
    "demo": CommandEntry(
        "dra_driver.cli.demo.command:demo_command",
        "Run the driver from end to end on this machine: no GPU, no cluster.",
        _RUN,
    ),
    "agent": CommandEntry("", "The node daemon: publishes GPUs and prepares claims (see agent --help).", _RUN),
    "mps": CommandEntry("", "The MPS supervisor: runs the control daemons of shared GPUs (see mps --help).", _RUN),
    "webhook": CommandEntry(
        "dra_driver.cli.webhook:webhook_command",
        "The admission webhook: refuses invalid configs, warns of selectors.",
        _RUN,
    ),
    "console-server": CommandEntry(
        "dra_driver.cli.console_server:console_server_command",
        "The console in a cluster: each viewer sees what they may read.",
        _RUN,
    ),
    "completion": CommandEntry(
        "dra_driver.cli.completion.command:completion_command",
        "Print the completion script for bash, zsh or fish.",
        _RUN,
    ),
    "pod-security": CommandEntry(
        "dra_driver.cli.pod_security:pod_security_command", "Set the namespace's Pod Security label.", _UNLISTED
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
