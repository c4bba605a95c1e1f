"""The option `--exit-code`, with which a command for people ends with status 1 if there are findings, for scripts."""

from __future__ import annotations

import click

exit_code_option = click.option("--exit-code", "fails", is_flag=True, help="End with 1 if there are findings.")
