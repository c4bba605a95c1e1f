"""StateFile: what happened to simulated devices since the node started, by device.

In: changes of one device at a time. Out: each device's current state. It is kept in a file, so that it outlives the
agent and two agents see the same hardware; another boot id empties it. The file is written in place under a lock that
its readers share, because renaming a new file over the old one takes ten times as long, and a real GPU writes nothing
to disk at all. Without a path nothing outlives the process.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from dra_driver.base.errors import HardwareError, Retry
from dra_driver.base.machine import Stamp, stamp_of, stamp_of_status
from dra_driver.hardware.facts import GpuFacts
from dra_driver.hardware.port import Roots
from dra_driver.hardware.simulated.profile import ResetOutcome, SimulatedGpu, SimulatedHealth

State = Mapping[str, Any]  # JSON
_DECODER = json.JSONDecoder()


class StateFile:
    """States by device, in the file at `path`."""

    def __init__(self, path: Path | None, boot_id: str) -> None:
        self._path = path
        # Texts rather than paths: pathlib is slower, and every change of a partition comes through here.
        self._file = os.fspath(path) if path else ""
        self._lock_file = os.fspath(path.with_suffix(".lock")) if path else ""
        self._boot_id = boot_id
        self._lock = threading.Lock()
        self._held: Mapping[str, State] = {}
        self._known: tuple[Stamp | None, Mapping[str, State]] | None = None  # the file when it was last read
        self._changes = 0

    def fingerprint(self) -> Hashable:
        """Return a value that differs after every change."""
        return self._changes if self._path is None else stamp_of(self._file)

    def read(self) -> Mapping[str, State]:
        """Return the states as they are now."""
        if self._path is None:
            return self._held
        stamp, known = stamp_of(self._file), self._known
        if stamp is None:
            return {}
        if known is None or known[0] != stamp:
            with self._locked_file(fcntl.LOCK_SH):
                known = self._known = self._content()
        return known[1]

    def change(self, device: str, edit: Callable[[State | None], State]) -> None:
        """Change one device's state; `edit` receives the current state (None if there is none), and may raise.

        An empty state counts as none. When no device has a state any more, the file is empty: to make it anew for the
        next state takes ten times as long as to write it.
        """
        with self._lock, self._locked_file(fcntl.LOCK_EX):
            known = self._known
            if self._path is not None and (known is None or known[0] != stamp_of(self._file)):
                known = self._known = self._content()
            states = dict(known[1] if known else self._held)
            states[device] = edit(states.get(device))
            self._write({name: state for name, state in states.items() if state})

    def _content(self) -> tuple[Stamp | None, Mapping[str, State]]:
        """Return the file's stamp and content. The caller has the lock.

        Text after the first document is ignored: it is the rest of an earlier, longer one.
        """
        try:
            with open(self._file, encoding="utf-8") as file:  # noqa: PTH123
                stamp = stamp_of_status(os.fstat(file.fileno()))
                text = file.read()
                if not text:
                    return stamp, {}
                document, _ = _DECODER.raw_decode(text)
        except FileNotFoundError:
            return None, {}
        except (OSError, ValueError):
            return None, {}
        return stamp, document["gpus"] if document["bootId"] == self._boot_id else {}

    @contextmanager
    def _locked_file(self, how: int) -> Iterator[None]:
        if self._path is None:
            yield
            return
        fd = self._opened_lock()
        try:
            fcntl.flock(fd, how)
            yield
        finally:
            os.close(fd)

    def _opened_lock(self) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        with suppress(FileNotFoundError):
            return os.open(self._lock_file, flags, 0o600)
        os.makedirs(os.path.dirname(self._lock_file), exist_ok=True)  # noqa: PTH103, PTH120
        return os.open(self._lock_file, flags, 0o600)

    def _write(self, states: Mapping[str, State]) -> None:
        self._changes += 1
        if self._path is None:
            self._held = states
        else:
            content = json.dumps({"bootId": self._boot_id, "gpus": states}).encode() if states else b""
            self._known = self._overwritten(content), states

    def _overwritten(self, content: bytes) -> Stamp:
        """Write the file and return its stamp. Its time is set here, because the file system's clock is coarse."""
        fd = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if os.pwrite(fd, content, 0) < len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.ftruncate(fd, len(content))
            now = time.time_ns()
            os.utime(fd, ns=(now, now))
            return stamp_of_status(os.fstat(fd))
        finally:
            os.close(fd)


# Resets of simulated GPUs: a fault that a reset ended does not return until the profile is changed.

_CURED_ACTIONS = (1, 3, 4)  # the recovery actions of NVML that are a reset, or end with one


class Resets:
    """The resets of one node's GPUs.

    If the profile's driver root has a program nvidia-smi, it is run as for real GPUs.
    """

    def __init__(self, state_dir: Path | None, boot_id: str, roots: Roots) -> None:
        self._file = StateFile(state_dir / "simulated-resets.json" if state_dir else None, boot_id)
        self._roots = roots

    @property
    def has_program(self) -> bool:
        """Return whether the driver root has the program that resets GPUs."""
        mount = self._roots.driver_mount
        return mount != "/" and Path(mount, "usr/bin/nvidia-smi").exists()

    def reset(self, gpus: Sequence[GpuFacts], known: Mapping[str, SimulatedGpu], deadline_s: float) -> None:
        """Reset GPUs. Raises: HardwareError("hardware.reset-failed")."""
        sections = {gpu.pci_address: known[gpu.pci_address].health for gpu in gpus if gpu.pci_address in known}
        if len(sections) < len(gpus) or any(one.reset is ResetOutcome.FAILS for one in sections.values()):
            raise HardwareError("reset-failed", "the profile makes the reset fail", retry=Retry.LATER)
        if self.has_program:
            from dra_driver.hardware.nvidia.changes import reset_gpus  # noqa: PLC0415 - only where there is one

            reset_gpus(self._roots, gpus, deadline_s)
        for address, section in sections.items():
            if section.reset is ResetOutcome.CURES:
                mark = {"health": repr(section), "xids": len(section.xids)}
                self._file.change(address, lambda _, mark=mark: mark)  # type: ignore[misc]

    def after(self, gpus: Mapping[str, SimulatedGpu]) -> Mapping[str, SimulatedGpu]:
        """Return the GPUs as they are after their resets."""
        marks = self._file.read()
        return {name: _after(gpu, marks[name]) if name in marks else gpu for name, gpu in gpus.items()}


def _after(gpu: SimulatedGpu, mark: State) -> SimulatedGpu:
    health = replace(gpu.health, xids=gpu.health.xids[int(mark["xids"]) :])
    return replace(gpu, health=_cured(health) if repr(gpu.health) == mark["health"] else health)


def _cured(health: SimulatedHealth) -> SimulatedHealth:
    return replace(
        health,
        recovery_action=0 if health.recovery_action in _CURED_ACTIONS else health.recovery_action,
        ecc_uncorrectable=health.ecc_uncorrectable and 0,
        remap_pending=health.remap_pending and False,
        links_down=(),
        fabric_summary=health.fabric_summary and 1,
    )
