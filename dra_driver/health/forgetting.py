"""Forgetting: GPUs that an administrator declared gone for good, with `dra-driver health forget`.

A request is a line in a file beside the health store; the agent that holds the node's role takes and removes the file.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from dra_driver.model.errors import InputError
from dra_driver.model.names import normal_pci_address

FILE_NAME = "health-forget"
MAX_BYTES = 1 << 16


class ForgetFile:
    """The requests of one node."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME

    def ask(self, gpu: str) -> None:
        """Ask the agent to forget a GPU, by PCI address. Raises: InputError("input.forget")."""
        try:
            with self._path.open("a", encoding="ascii") as file:
                file.write(f"{gpu}\n")
        except OSError as error:
            hint = "is the agent's data folder on this node, and may you write there?"
            raise InputError("forget", f"{self._path} can't be written: {error.strerror}", hint=hint) from error

    def take(self) -> frozenset[str]:
        """Remove the requests, and return the GPUs to be forgotten.

        Lines that are not PCI addresses are ignored.
        """
        taken = self._path.with_name(f"{FILE_NAME}.taken")
        found = set()
        try:
            os.replace(self._path, taken)  # noqa: PTH105 - faster, as this is called every second
            with taken.open("rb") as file:
                lines = file.read(MAX_BYTES).decode("ascii", "replace").split()
            taken.unlink()
        except OSError:
            return frozenset()
        for line in lines:
            with suppress(ValueError):
                found.add(normal_pci_address(line))
        return frozenset(found)
