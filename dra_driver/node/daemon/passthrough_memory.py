"""GPUs for virtual machines, as the agent sees them: named by rules, passed through, and checked on their return."""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from dra_driver.base.errors import LedgerError
from dra_driver.base.telemetry.logs import fields
from dra_driver.hardware.facts import GpuFacts
from dra_driver.hardware.vfio import UNKNOWN, PciIdentity
from dra_driver.node.health.faults import read_gpus
from dra_driver.node.ledger.state import Part, StatePart, is_damaged

# What `remembered_gpus` keeps: one JSON document. It exists as soon as a GPU could be passed through.
PART = Part(
    "passthrough",
    "passthrough-damaged",
    {"passthrough": "body TEXT NOT NULL"},
    older="passthrough.json",
    check=lambda text: json.loads(text).items(),
)


def may_be_away(folder: Path) -> bool:
    """Return whether a virtual machine may have a GPU of this node: one could be passed through, or that is unknown."""
    try:
        return StatePart(folder, PART).read(
            lambda connection: connection.execute("SELECT 1 FROM passthrough").fetchone() is not None, nothing=False
        )
    except LedgerError:
        return True


log = logging.getLogger(__name__)

PATIENCE_SECONDS = 0.02  # how long a Prepare may wait for other processes, twice at most


@dataclass(frozen=True, slots=True)
class ReturningGpu:
    """A GPU that comes back from a virtual machine, with its identity and firmware from before ("" if not known)."""

    uuid: str = ""
    vbios_version: str = ""
    needs_persistence: bool = False
    identity: PciIdentity = UNKNOWN


@dataclass(slots=True)
class _Content:
    """What is remembered. `is_lost`: a file before was damaged, so every GPU has to be checked."""

    gpus: dict[str, GpuFacts] = field(default_factory=dict)
    returning: dict[str, ReturningGpu] = field(default_factory=dict)
    is_lost: bool = False


_Change = Callable[[_Content], object]


class RememberedGpus:
    """The remembered GPUs of one node. Any thread may call any method."""

    def __init__(self, folder: Path, boot_id: str) -> None:
        self._part = StatePart(folder, PART, patience_s=PATIENCE_SECONDS)
        self._boot_id = boot_id
        self._mutex = threading.Lock()
        self._stamp: Hashable = None
        self._on_disk, self._now = _Content(), _Content()
        self._waiting: list[_Change] = []  # changes that are not on disk yet
        self._problem = ""
        self.is_known = False  # whether the state was ever read
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
        """Return whether a file was damaged, so that each GPU has to be checked: `begin_again`."""
        return self._now.is_lost

    def facts_of(self, address: str) -> GpuFacts | None:
        """Return the facts of a GPU as a driver of the host reported them last."""
        return self._now.gpus.get(address)

    def learn(self, gpus: Iterable[GpuFacts]) -> None:
        """Remember the facts of the GPUs that their driver reports now."""
        bare = {gpu.pci_address: replace(gpu, passthrough=None, partitions=(), mig_enabled=False) for gpu in gpus}
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
        """Read the state if it has changed, and make the changes that wait; while that is impossible, keep them."""
        try:
            if self._waiting:
                self._write()
            else:
                self._read()
            self._problem = ""
        except LedgerError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                log.warning("GPUs for virtual machines not recorded", extra=fields(code=error.code, err=str(error)))
        self._now = self._with_waiting(self._on_disk)

    def _with_waiting(self, before: _Content) -> _Content:
        content = _Content(dict(before.gpus), dict(before.returning), before.is_lost)
        for change in self._waiting:
            change(content)
        return content

    def _write(self) -> None:
        """Make the changes that wait. A damaged file is set aside first, and that is recorded. Raises: LedgerError."""
        try:
            content = self._written()
        except LedgerError as error:
            if not is_damaged(error):
                raise
            self._part.set_aside()
            content = self._written()
        self._stamp, self._on_disk, self._waiting, self.is_known = None, content, [], True

    def _written(self) -> _Content:
        is_lost = self._part.is_lost()

        def job(connection: sqlite3.Connection) -> _Content:
            content = self._with_waiting(self._content(_body(connection), is_lost=is_lost))
            connection.execute("DELETE FROM passthrough")
            connection.execute("INSERT INTO passthrough VALUES (?)", (self._text(content),))
            return content

        return self._part.write(job)

    def _read(self) -> None:
        """Read the state, if it has changed since. Raises: LedgerError, with what was read before unchanged."""
        stamp = self._part.stamp()
        if self.is_known and stamp is not None and stamp == self._stamp:
            return
        try:
            is_lost = self._part.is_lost()
            content = self._part.read(
                lambda connection: self._content(_body(connection), is_lost=is_lost), _Content(is_lost=is_lost)
            )
        except LedgerError as error:
            if not is_damaged(error):
                raise
            content = _Content(is_lost=True)
        self._on_disk, self._stamp, self.is_known = content, stamp, True

    def _content(self, text: str | None, *, is_lost: bool) -> _Content:
        """Return the content of a document, without what another boot wrote."""
        if text is None:
            return _Content(is_lost=is_lost)
        document = json.loads(text)
        return _content_of(document) if document.get("boot") == self._boot_id else _Content()

    def _text(self, content: _Content) -> str:
        document = {
            "boot": self._boot_id,
            "gpus": [{"vendor": gpu.vendor, **asdict(gpu)} for gpu in content.gpus.values()],
            "returning": {address: asdict(one) for address, one in content.returning.items()},
            "lost": content.is_lost,
        }
        return json.dumps(document)


def _body(connection: sqlite3.Connection) -> str | None:
    row = connection.execute("SELECT body FROM passthrough").fetchone()
    return str(row[0]) if row else None


def _content_of(document: Mapping[str, Any]) -> _Content:
    gpus, wire = read_gpus(_bare(document.get("gpus"))), document.get("returning")
    found = _Content({gpu.pci_address: gpu for gpu in gpus}, is_lost=document.get("lost") is True)
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
    return [{key: value for key, value in row.items() if key != "passthrough"} for row in rows if isinstance(row, dict)]
