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
    "slices": CommandEntry("fleet.slices", "The fleet as a tree: node, GPU, partition, claim, pod.", _LOOK),
    "claims": CommandEntry("fleet.claims", "Claims as a tree, with their devices and pods.", _LOOK),
    "in-use": CommandEntry("fleet.in_use", "Claims that hold devices of this driver, and their pods.", _LOOK),
    "devices": CommandEntry("fleet.devices", "What this node would publish, and what is wrong with it.", _LOOK),
    "console": CommandEntry("console", "The fleet, claims and selectors in a browser.", _LOOK),
    "usage": CommandEntry("cost.command", "What GPUs were used for, what that cost, what could be saved.", _LOOK),
    "explain": CommandEntry("simulate.explain", "Why claims and pods fit or do not, node by node.", _WHY),
    "simulate": CommandEntry(
        "simulate.command", "What the scheduler would do, on files or on the cluster as it is.", _WHY
    ),
    "cel": CommandEntry("cel.group", "CEL selectors offline: test, explain, lint, repl, batch.", _WHY),
    "doctor": CommandEntry(
        "doctor", "What is wrong on this node or in the cluster, the evidence, how to fix it.", _WHY
    ),
    "check-config": CommandEntry("check_config", "Check files for the agents before they are rolled out.", _CHANGE),
    "cordon": CommandEntry("health.cordon", "Take a device of this node out of use; its pods stay.", _CHANGE),
    "uncordon": CommandEntry("health.uncordon", "End the cordon of a device.", _CHANGE),
    "release": CommandEntry(
        "health.release", "Devices that wait for a container to end; release one by force.", _CHANGE
    ),
    "validate": CommandEntry("health.validate", "Test the free devices of this node.", _WHY),
    "health": CommandEntry("health.group", "Faults and cordons of this node; forget a GPU that is gone.", _WHY),
    "remediation": CommandEntry(
        "health.remediation", "GPUs that need a reset or a reboot: show, retry, give up.", _CHANGE
    ),
    "migrate": CommandEntry("migrate.command", "Turn manifests written for the device plugin into claims.", _CHANGE),
    "demo": CommandEntry("demo.command", "Run the driver from end to end on this machine: no GPU, no cluster.", _RUN),
    "agent": CommandEntry("", "The node daemon: publishes GPUs and prepares claims (see agent --help).", _RUN),
    "mps": CommandEntry("", "The MPS supervisor: runs the control daemons of shared GPUs (see mps --help).", _RUN),
    "webhook": CommandEntry("webhook", "The admission webhook: refuses invalid configs, warns of selectors.", _RUN),
    "console-server": CommandEntry(
        "console_server", "The console in a cluster: each viewer sees what they may read.", _RUN
    ),
    "completion": CommandEntry("completion.command", "Print the completion script for bash, zsh or fish.", _RUN),
    "pod-security": CommandEntry("pod_security", "Set the namespace's Pod Security label.", _UNLISTED),
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
