"""The table of commands, and the one place where errors become exit statuses.

In: argv. Out: an exit status of `ExitCode`. A user's error is one line and a hint; only a bug shows a traceback.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

import click

from dra_driver import __version__
from dra_driver.cli.lazy import CommandEntry, LazyGroup
from dra_driver.model.errors import DriverError, ExitCode, InputError

_SHOWN_MAX = 300  # in characters of a path
INTERRUPTED = 130  # 128 + SIGINT, as shells expect


_LOOK, _WHY, _CHANGE, _RUN = "Look", "Ask why", "Change", "Run"
_UNLISTED = ""  # for the chart's Jobs and for shells, not for people

COMMANDS: dict[str, CommandEntry] = {
    "slices": CommandEntry("fleet.slices", "The fleet as a tree: node, GPU, partition, claim, pod.", _LOOK),
    "claims": CommandEntry("fleet.claims", "Claims as a tree, with their devices and pods.", _LOOK),
    "devices": CommandEntry("fleet.devices", "What this node would publish, and what is wrong with it.", _LOOK),
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
    "health": CommandEntry("health.group", "Faults and cordons of this node; forget a GPU that is gone.", _WHY),
    "migrate": CommandEntry("migrate.command", "Turn manifests written for the device plugin into claims.", _CHANGE),
    "demo": CommandEntry("demo.command", "Run the driver from end to end on this machine: no GPU, no cluster.", _RUN),
    "agent": CommandEntry("", "The node daemon: publishes GPUs and prepares claims (see agent --help).", _RUN),
    "mps": CommandEntry("", "The MPS supervisor: keeps control daemons of shared GPUs (see mps --help).", _RUN),
    "webhook": CommandEntry("webhook", "The admission webhook: refuses invalid configs, warns of selectors.", _RUN),
    "completion": CommandEntry("completion.command", "Print the completion script for bash, zsh or fish.", _RUN),
    "in-use": CommandEntry("fleet.in_use", "Claims that hold devices of this driver.", _UNLISTED),
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
  5   the machine lacks something (driver, permission, API server),
      or the answer is not known, because something may not be read
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


def run(argv: Sequence[str], program: str = "dra-driver") -> int:
    """Run one command and return its exit status. `program` is what the command line calls itself."""
    if argv[:1] == ["__complete"]:  # asked by a shell's completion script
        from dra_driver.cli.completion.command import complete

        return complete(argv[1:])
    logging.getLogger("dra_driver").addHandler(
        logging.NullHandler()
    )  # commands print their own messages, so log records go nowhere
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(
                errors="replace"
            )  # a character that the terminal can't show is printed as a question mark
    try:
        status = cli.main(args=list(argv), prog_name=program, standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as help_text:
        help_text.show()
        return ExitCode.USAGE
    except click.ClickException as fault:
        fault.show()
        return ExitCode.USAGE
    except (click.Abort, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except DriverError as fault:
        _say(fault)
        return fault.exit_code
    except BrokenPipeError:
        _silence_stdout()
        return ExitCode.OK
    except OSError as fault:  # an overlong name, a loop of links, a full disk: not a bug in the code
        named = f": {str(fault.filename)[:_SHOWN_MAX]}" if fault.filename else ""
        _say(InputError("unreadable", f"{fault.strerror or fault}{named}"))
        return ExitCode.BAD_INPUT
    except RecursionError:
        _say(InputError("not-yaml", "an input is nested too deeply"))
        return ExitCode.BAD_INPUT
    except Exception:  # noqa: BLE001
        _report_bug()
        return ExitCode.BUG
    return status if isinstance(status, int) else ExitCode.OK


def _say(fault: DriverError) -> None:
    print(f"dra-driver: {fault.message} [{fault.code}]", file=sys.stderr)
    if fault.hint:
        print(f"  {fault.hint}", file=sys.stderr)


def _report_bug() -> None:
    traceback.print_exc()
    print(
        f"dra-driver {__version__}: this is a bug, not something that you did. Please report the lines above,"
        " with the command, in the project's issue tracker.",
        file=sys.stderr,
    )


def _silence_stdout() -> None:
    """Keep the interpreter from reporting a broken pipe on standard output when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> NoReturn:
    """Run the command line as a program."""
    sys.exit(run(sys.argv[1:]))
