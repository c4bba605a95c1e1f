"""Remembered GPUs: the last known facts of GPUs for virtual machines, and which of them are being checked on return.

In: facts. Out: the same facts while no driver of the host has the GPU, even after a restart in the same boot. They are
in a file beside the ledger, which is replaced as a whole.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dra_driver.agent.passthrough import FILE_NAME
from dra_driver.hardware.facts import GpuFacts
from dra_driver.hardware.passthrough.identity import UNKNOWN, PciIdentity
from dra_driver.health.known_gpus import read_gpus
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ReturningGpu:
    """A GPU that comes back from a virtual machine, with its identity and firmware from before ("" if not known)."""

    uuid: str = ""
    vbios_version: str = ""
    needs_persistence: bool = False
    identity: PciIdentity = UNKNOWN


class RememberedGpus:
    """The file of one node. Any thread may call any method."""

    def __init__(self, folder: Path, boot_id: str) -> None:
        self._path, self._boot_id = folder / FILE_NAME, boot_id
        self._mutex = threading.Lock()
        self._gpus: dict[str, GpuFacts] = {}
        self._returning: dict[str, ReturningGpu] = {}
        self._read()

    @property
    def addresses(self) -> frozenset[str]:
        """Return the PCI addresses of the GPUs that are remembered."""
        return frozenset(self._gpus)

    @property
    def returning(self) -> Mapping[str, ReturningGpu]:
        """Return the GPUs that are being checked, by PCI address."""
        with self._mutex:
            return dict(self._returning)

    def facts_of(self, address: str) -> GpuFacts | None:
        """Return the facts of a GPU as a driver of the host reported them last."""
        return self._gpus.get(address)

    def learn(self, gpus: Iterable[GpuFacts]) -> None:
        """Remember the facts of the GPUs that their driver reports now."""
        bare = {one.pci_address: replace(one, passthrough=None, partitions=(), mig_enabled=False) for one in gpus}
        with self._mutex:
            if any(self._gpus.get(address) != one for address, one in bare.items()):
                self._gpus.update(bare)
                self._write()

    def begin_return(self, address: str, gpu: ReturningGpu) -> None:
        """Record that a GPU comes back."""
        with self._mutex:
            self._returning[address] = gpu
            self._write()

    def end_return(self, address: str) -> None:
        """Record that a GPU was checked."""
        with self._mutex:
            if self._returning.pop(address, None) is not None:
                self._write()

    def _write(self) -> None:
        document = {
            "boot": self._boot_id,
            "gpus": [{"vendor": one.vendor, **asdict(one)} for one in self._gpus.values()],
            "returning": {address: asdict(one) for address, one in self._returning.items()},
        }
        beside = self._path.with_name(f".{FILE_NAME}")
        try:
            with beside.open("w", encoding="ascii") as file:
                json.dump(document, file)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(self._path)
        except OSError as error:  # a later agent then checks less, but nothing is handed out twice
            log.warning("GPUs for virtual machines not recorded", extra=fields(file=str(self._path), err=str(error)))

    def _read(self) -> None:
        try:
            with self._path.open("rb") as file:
                document = json.loads(file.read(MAX_BYTES))
        except (OSError, ValueError, RecursionError):
            return
        if not isinstance(document, dict) or document.get("boot") != self._boot_id:
            return
        self._gpus = {one.pci_address: one for one in read_gpus(_bare(document.get("gpus")))}
        returning = document.get("returning")
        for address, one in returning.items() if isinstance(returning, dict) else ():
            if isinstance(one, dict):
                self._returning[str(address)] = _returning(one)


def _returning(wire: dict[str, Any]) -> ReturningGpu:
    found = wire.get("identity")
    identity = (
        {key: str(found[key]) for key in ("numbers", "serial") if key in found} if isinstance(found, dict) else {}
    )
    needs_persistence = wire.get("needs_persistence") is True
    return ReturningGpu(
        str(wire.get("uuid", "")), str(wire.get("vbios_version", "")), needs_persistence, PciIdentity(**identity)
    )


def _bare(wire: Any) -> list[dict[str, Any]]:
    rows = wire if isinstance(wire, list) else []
    return [{key: value for key, value in one.items() if key != "passthrough"} for one in rows if isinstance(one, dict)]
