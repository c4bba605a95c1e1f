"""The option that lets a script use a command that a person looks with: findings then end it with 1."""

from __future__ import annotations

import click

exit_code_option = click.option("--exit-code", "fails", is_flag=True, help="End with 1 if there are findings.")
