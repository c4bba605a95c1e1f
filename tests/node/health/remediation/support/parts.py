"""GPUs, faults and a node in a file, for tests of remediation: what is done to the node outlives the process."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dra_driver.base.errors import ApiError, HardwareError, Retry
from dra_driver.hardware.facts import GpuFacts, PartitionFacts
from dra_driver.hardware.nvidia.published import NvidiaGpu
from dra_driver.node.health.cases import SiteCommand
from dra_driver.node.health.faults import Fault, FaultKey, Subject
from dra_driver.node.health.validation import ValidationLevel, ValidationResult, ValidationVerdict

ONE, TWO = "0000:1b:00.0", "0000:43:00.0"
BOOT = "1b4e28ba"


def gpu(address: str = ONE, **more: object) -> GpuFacts:
    return NvidiaGpu(**{"uuid": f"GPU-{address}", "pci_address": address, "minor": 0, "memory_bytes": 80 << 30, **more})


def fault(key: FaultKey, value: str = "", address: str = ONE, **more: object) -> Fault:
    return Fault(key, Subject(address), value, 100.0, 200.0, **more)  # type: ignore[arg-type]


def partition() -> PartitionFacts:
    engines = {f"{name}s": 1 for name in ("copy_engine", "decoder", "encoder", "jpeg_engine", "ofa_engine")}
    place = {"gi_profile_id": 19, "gi_id": 1, "ci_id": 0, "start": 0, "size": 1}
    return PartitionFacts(uuid="MIG-1", profile="1g.10gb", memory_bytes=1 << 30, multiprocessors=16, **place, **engines)


class Clock:
    """A clock that moves only when a test moves it."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class FileNode:
    """A node whose state is a JSON file: its faults, what was done to it, and which claims and processes use GPUs."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.is_library_released = False
        self.when_reset: Callable[[], None] = lambda: None  # called while a GPU is reset
        self.when_asked: Callable[[], None] = lambda: None  # called when the users of a GPU are asked for
        if not path.exists():
            start = {"faults": {ONE: ["needs-reset", "gpu-reset"]}, "gpus": {ONE: f"GPU-{ONE}", TWO: f"GPU-{TWO}"}}
            self.change(
                **start, log=[], users=[], clients=[], verdict="passed", resets_left=1, slot=0.0, persistence=True
            )
            self.change(published=True, partitioned=[], has_slot=False, releases=True, slot_left=False, read=True)

    def change(self, **values: object) -> None:
        state = json.loads(self._path.read_text()) if self._path.exists() else {}
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps({**state, **values}))
        new.replace(self._path)

    def __getitem__(self, name: str) -> object:
        return json.loads(self._path.read_text())[name]

    def _note(self, *what: str) -> None:
        self.change(log=[*self["log"], " ".join(what)])

    def logged(self, word: str) -> list[str]:
        return [line for line in self["log"] if line.split()[0] == word]

    # -- RemediationNode

    def gpus(self) -> tuple[GpuFacts, ...]:
        lost = [address for address, (key, _) in self["faults"].items() if key == "gpu-lost"]
        partitions = {one: (partition(),) for one in self["partitioned"]}
        return tuple(
            gpu(one, uuid=uuid, is_lost=one in lost, partitions=partitions.get(one, ()))
            for one, uuid in sorted(self["gpus"].items())
        )

    def faults(self) -> tuple[Fault, ...]:
        return tuple(fault(FaultKey(key), value, address) for address, (key, value) in self["faults"].items())

    def was_seen_since(self, at: float) -> bool:
        return True

    def was_read_since(self, gpu: str, at: float) -> bool:
        return bool(self["read"])

    def hold(self, faults: tuple[Fault, ...] | None) -> None:
        self.change(held=None if faults is None else {one.subject.gpu: one.value for one in faults})

    def is_published(self) -> bool:
        return bool(self["published"])

    def users(self, gpus: Collection[str]) -> tuple[str, ...]:
        self.when_asked()
        return tuple(self["users"])

    def clients(self, gpu: GpuFacts) -> tuple[str, ...]:
        return tuple(self["clients"])

    def send_event(self, reason: str, text: str, gpus: Collection[str] = ()) -> None:
        self._note("event", reason)

    def end_sharing(self, gpu: GpuFacts) -> None:
        assert not self.users(())

    def persistence(self, gpu: GpuFacts) -> bool | None:
        return self["persistence"]

    def set_persistence(self, gpu: GpuFacts, *, enabled: bool) -> None:
        self.change(persistence=enabled)

    @contextmanager
    def closed(self, gpus: Collection[str]) -> Iterator[str]:
        self.is_library_released = True
        try:
            yield ""
        finally:
            self.is_library_released = False

    def reset(self, gpus: Sequence[GpuFacts], timeout_s: float) -> None:
        assert self.is_library_released, "reset while the library is in use"
        assert not self["persistence"], "reset in persistence mode"
        assert gpus[0].pci_address in self["held"], "reset of a GPU that may get a claim"
        assert not self["users"], "reset under a claim"
        assert self["has_slot"], "reset without a slot of the cluster's budget"
        self._note("reset", *(one.pci_address for one in gpus))
        self.when_reset()
        if self["resets_left"] is None:
            raise HardwareError("reset-failed", "refused", retry=Retry.LATER)
        self.change(resets_left=self["resets_left"] - 1)
        if self["resets_left"] <= 0:
            self.change(faults={one: row for one, row in self["faults"].items() if one != gpus[0].pci_address})

    def run(self, command: SiteCommand, gpu: GpuFacts) -> None:
        self._note("run", *command.argv_for(gpu.uuid, gpu.pci_address))
        self.change(faults={})

    def ask_reboot(self, text: str) -> None:
        self._note("reboot", text)
        self.change(is_asked=True)

    def withdraw_reboot(self) -> None:
        self.change(is_asked=False)

    def forget_errors(self, gpu: str) -> None:
        pass

    def validate(self, gpu: GpuFacts) -> ValidationResult:
        self._note("validate", gpu.pci_address)
        return ValidationResult(ValidationVerdict(self["verdict"]), ValidationLevel.COMPUTE, "as-scripted")

    def acquire_slot(self) -> float:
        self._note("slot")
        if self["slot"] is None:
            raise ApiError("forbidden", "403", hint="grant it")
        self.change(has_slot=self["slot"] == 0.0)
        return float(self["slot"])

    def renew_slot(self) -> None:
        pass

    @property
    def is_slot_left(self) -> bool:
        return bool(self["slot_left"])

    def release_slot(self) -> None:
        if not self["releases"]:
            self.change(slot_left=True)
            return
        self.change(has_slot=False, slot_left=False)
        self._note("slot-back")
