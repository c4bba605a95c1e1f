"""The option by which a command for people can also be used in a script: findings then end it with status 1."""

from __future__ import annotations

import click

exit_code_option = click.option("--exit-code", "fails", is_flag=True, help="End with 1 if there are findings.")
