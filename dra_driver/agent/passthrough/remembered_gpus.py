"""Remembered GPUs: the last known facts of GPUs for virtual machines, and which of them are being checked on return.

In: facts. Out: the same facts while no driver of the host has the GPU, even after a restart in the same boot. They are
in a file beside the ledger, which two agents of an upgrade share: each change is made to what the file has then, under
a lock. While that is impossible, the change waits. What is done if the file fails: `health.kept_file`.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from dra_driver.agent.passthrough import FILE_NAME
from dra_driver.hardware.facts import GpuFacts
from dra_driver.hardware.passthrough.identity import UNKNOWN, PciIdentity
from dra_driver.health.kept_file import KeptFile
from dra_driver.health.known_gpus import read_gpus
from dra_driver.model.errors import LedgerError
from dra_driver.model.stamp import stamp_of
from dra_driver.telemetry.logs import fields

log = logging.getLogger(__name__)

MAX_BYTES = 1 << 20
LOCK_SECONDS, POLL_SECONDS = 2.0, 0.01


@dataclass(frozen=True, slots=True)
class ReturningGpu:
    """A GPU that comes back from a virtual machine, with its identity and firmware from before ("" if not known)."""

    uuid: str = ""
    vbios_version: str = ""
    needs_persistence: bool = False
    identity: PciIdentity = UNKNOWN


@dataclass(slots=True)
class _Content:
    """What the file holds. `is_lost`: a file before it was damaged, so every GPU has to be checked."""

    gpus: dict[str, GpuFacts] = field(default_factory=dict)
    returning: dict[str, ReturningGpu] = field(default_factory=dict)
    is_lost: bool = False


_Change = Callable[[_Content], object]


class RememberedGpus:
    """The file of one node. Any thread may call any method."""

    def __init__(self, folder: Path, boot_id: str) -> None:
        self._file = KeptFile(folder / FILE_NAME, ("passthrough", "passthrough-damaged"))
        self._boot_id = boot_id
        self._lock_path = self._file.path.with_suffix(".lock")
        self._mutex = threading.Lock()
        self._stamp: Hashable = None
        self._on_disk, self._now = _Content(), _Content()
        self._waiting: list[_Change] = []  # changes that are not on disk yet
        self._problem = ""
        self._is_damaged = False
        self.is_known = False  # whether the file was ever read
        with self._mutex:
            self._sync()

    @property
    def addresses(self) -> frozenset[str]:
        """Return the PCI addresses of the GPUs that are remembered."""
        return frozenset(self._now.gpus)

    @property
    def returning(self) -> Mapping[str, ReturningGpu]:
        """Return the GPUs that are being checked, by PCI address."""
        with self._mutex:
            self._sync()
            return dict(self._now.returning)

    @property
    def is_lost(self) -> bool:
        """Return whether the file was damaged, so that each GPU has to be checked: `begin_again`."""
        return self._now.is_lost

    def facts_of(self, address: str) -> GpuFacts | None:
        """Return the facts of a GPU as a driver of the host reported them last."""
        return self._now.gpus.get(address)

    def learn(self, gpus: Iterable[GpuFacts]) -> None:
        """Remember the facts of the GPUs that their driver reports now."""
        bare = {one.pci_address: replace(one, passthrough=None, partitions=(), mig_enabled=False) for one in gpus}
        if any(self._now.gpus.get(address) != one for address, one in bare.items()):
            self._change(lambda content: content.gpus.update(bare))

    def begin_return(self, address: str, gpu: ReturningGpu) -> None:
        """Record that a GPU comes back."""
        self._change(lambda content: content.returning.update({address: gpu}))

    def begin_again(self, addresses: Iterable[str]) -> None:
        """Record that these GPUs have to be checked, because it was lost which of them come back."""
        again = {address: ReturningGpu() for address in addresses}

        def change(content: _Content) -> None:
            content.returning, content.is_lost = {**again, **content.returning}, False

        self._change(change)

    def end_return(self, address: str) -> None:
        """Record that a GPU was checked."""
        if address in self._now.returning:
            self._change(lambda content: content.returning.pop(address, None))

    def _change(self, change: _Change) -> None:
        with self._mutex:
            self._waiting.append(change)
            self._sync()

    def _sync(self) -> None:
        """Read the file if it has changed, and make the changes that wait; while that is impossible, keep them."""
        try:
            if self._waiting:
                with self._locked():
                    self._read()
                    self._write()
            else:
                self._read()
            self._problem = ""
        except LedgerError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                log.warning("GPUs for virtual machines not recorded", extra=fields(code=error.code, err=str(error)))
        self._now = self._with_waiting()

    def _with_waiting(self) -> _Content:
        before = self._on_disk
        content = _Content(dict(before.gpus), dict(before.returning), before.is_lost)
        for change in self._waiting:
            change(content)
        return content

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            with self._lock_path.open("w") as lock:
                end = time.monotonic() + LOCK_SECONDS
                while True:
                    try:
                        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        break
                    except BlockingIOError:
                        if time.monotonic() > end:
                            raise
                        time.sleep(POLL_SECONDS)
                yield
        except OSError as error:
            raise self._file.unavailable(error) from error

    def _write(self) -> None:
        content = self._with_waiting()
        document = {
            "boot": self._boot_id,
            "gpus": [{"vendor": one.vendor, **asdict(one)} for one in content.gpus.values()],
            "returning": {address: asdict(one) for address, one in content.returning.items()},
            "lost": content.is_lost,
        }
        if self._is_damaged:
            self._file.set_aside()
        beside = self._file.path.with_name(f".{FILE_NAME}")
        with beside.open("w", encoding="ascii") as file:
            json.dump(document, file)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self._file.path)
        self._stamp, self._on_disk, self._waiting, self._is_damaged = stamp_of(self._file.path), content, [], False

    def _read(self) -> None:
        """Read the file, if it has changed since. Raises: LedgerError, with what was read before unchanged."""
        is_there, stamp = self._file.exists(), stamp_of(self._file.path)
        if self.is_known and stamp is not None and stamp == self._stamp:
            return
        content = self._parsed(self._bytes()) if is_there else _Content(is_lost=self._file.was_set_aside)
        self._is_damaged = content is None
        self._on_disk, self._stamp, self.is_known = content or _Content(is_lost=True), stamp, True

    def _bytes(self) -> bytes:
        try:
            with self._file.path.open("rb") as file:
                return file.read(MAX_BYTES + 1)
        except OSError as error:
            raise self._file.unavailable(error) from error

    def _parsed(self, text: bytes) -> _Content | None:
        """Return the content of a file, without what another boot wrote; None if the file is damaged."""
        try:
            document = json.loads(text) if len(text) <= MAX_BYTES else None
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            return None
        return _content_of(document) if document.get("boot") == self._boot_id else _Content()


def _content_of(document: Mapping[str, Any]) -> _Content:
    gpus, wire = read_gpus(_bare(document.get("gpus"))), document.get("returning")
    found = _Content({one.pci_address: one for one in gpus}, is_lost=document.get("lost") is True)
    for address, one in wire.items() if isinstance(wire, dict) else ():
        if isinstance(one, dict):
            found.returning[str(address)] = _returning(one)
    return found


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
