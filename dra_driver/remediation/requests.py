"""Remediation requests: what an administrator asks the agent to do about a GPU in remediation.

In: `dra-driver remediation retry|give-up|done`. Out: the requests, each once. A request is a line in a file beside the
journal; the agent that holds the node's role takes and removes the file.
"""

from __future__ import annotations

import enum
import os
from contextlib import suppress
from pathlib import Path

from dra_driver.model.errors import InputError
from dra_driver.model.names import normal_pci_address

FILE_NAME = "remediation-requests"
MAX_BYTES = 1 << 16


class RemediationRequest(enum.StrEnum):
    """The possible requests."""

    RETRY = "retry"  # begin again, as if nothing had been tried; weekly budgets still apply
    GIVE_UP = "give-up"  # try nothing more, and keep the GPU out of use
    DONE = "done"  # a person has repaired the GPU: test it and return it


class RequestFile:
    """The requests of one node."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME

    def ask(self, gpu: str, request: RemediationRequest) -> None:
        """Add a request about a GPU, by PCI address. Raises: InputError("input.remediation-request")."""
        try:
            with self._path.open("a", encoding="ascii") as file:
                file.write(f"{request} {gpu}\n")
        except OSError as error:
            hint = "is the agent's data folder on this node, and may you write there?"
            message = f"{self._path} can't be written: {error.strerror}"
            raise InputError("remediation-request", message, hint=hint) from error

    def take(self) -> dict[str, RemediationRequest]:
        """Remove the requests, and return the last one for each GPU; lines that are not requests are ignored."""
        taken = self._path.with_name(f"{FILE_NAME}.taken")
        try:
            os.replace(self._path, taken)  # noqa: PTH105 - faster, as the file hardly ever exists in a turn
            with taken.open("rb") as file:
                lines = file.read(MAX_BYTES).decode("ascii", "replace").splitlines()
            taken.unlink()
        except OSError:
            return {}
        found = {}
        for line in lines:
            word, _, gpu = line.partition(" ")
            with suppress(ValueError):
                found[normal_pci_address(gpu)] = RemediationRequest(word)
        return found
