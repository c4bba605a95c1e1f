"""One flag of a program: its name, its environment variable, its default; and how flags are read.

A flag takes precedence over its variable, whose name is the flag's in upper case with underscores, without a prefix.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dra_driver.model.errors import UsageError
from dra_driver.model.vendors import registered

if TYPE_CHECKING:
    from argparse import ArgumentParser


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag. `default` is shown in --help; commands that read this node's hardware have those with `is_hardware`."""

    name: str  # "--node-name"
    default: str
    meaning: str
    metavar: str = "TEXT"
    choices: tuple[str, ...] = ()
    is_hardware: bool = False

    @property
    def field(self) -> str:
        """Return the flag as a Python name, for example `node_name`."""
        return self.name.removeprefix("--").replace("-", "_")

    @property
    def variable(self) -> str:
        """Return the name of the environment variable that also sets the flag, for example `NODE_NAME`."""
        return self.field.upper()


def add_to(parser: ArgumentParser, flags: Iterable[Flag]) -> None:
    """Add flags to a parser, with their defaults and variables in --help; `resolve` reads what it found."""
    for flag in flags:
        default = f" (default {flag.default})" if flag.default else ""
        text = f"{flag.meaning}{default}; env {flag.variable}"
        parser.add_argument(flag.name, dest=flag.field, metavar=flag.metavar, help=text)


def resolve(given: Mapping[str, str | None], environment: Mapping[str, str], flags: Iterable[Flag]) -> dict[str, str]:
    """Return every value by field name: the flag if given, else its variable unless that is empty, else the default.

    Raises: UsageError("usage.bad-choice", "usage.flags"), naming the flag or the variable that is wrong.
    """
    values: dict[str, str] = {}
    for flag in sorted(flags, key=lambda flag: flag.name == "--driver-name"):  # its default depends on another's value
        value, source = given.get(flag.field), flag.name
        if value is None:
            text = environment.get(flag.variable, "")
            value, source = (text, flag.variable) if text else (_default(flag, values), flag.name)
        if flag.choices and value not in flag.choices:
            raise UsageError("bad-choice", f"{source}={value!r} is not one of {', '.join(flag.choices)}")
        if flag.default and not value:  # an empty path would mean the folder that the process happens to be in
            raise UsageError("flags", f"{source} is empty", hint=f"leave it out to use the default {flag.default}")
        values[flag.field] = value
    return values


def _default(flag: Flag, values: Mapping[str, str]) -> str:
    """Return the value of a flag that is not given; `values` has the flags that were read before it."""
    vendor = registered(values.get("hardware", "")) if flag.name == "--driver-name" else None
    return vendor.driver if vendor else flag.default
