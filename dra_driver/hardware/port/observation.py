"""The abilities to observe GPUs: health, measurements, the processes on a device, and tests by computing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

from dra_driver.hardware.compute.program import ComputeProgram
from dra_driver.hardware.evidence import BusState, HealthReport
from dra_driver.hardware.facts import GpuFacts, PartitionFacts
from dra_driver.hardware.metered import MeterPlan, MeterReport


@runtime_checkable
class HealthReporter(Protocol):
    """Optional ability: report what can be observed about the health of the GPUs.

    The vendor's own thread makes the library calls; none of these methods waits for one longer than `patience_s`, and
    none holds up a call of another ability.
    """

    def watch_health(self, notify: Callable[[], None], *, log_position: int) -> None:
        """Begin to observe; calling it again replaces the earlier observation.

        Args:
            notify: called by any thread when there is something to report; it must return at once.
            log_position: the sequence number of the last kernel message that was reported earlier in this boot.
        """

    def health(self, *, is_urgent: bool, patience_s: float) -> HealthReport:
        """Return what was observed since the last call.

        Args:
            is_urgent: whether to wait for readings that begin after this call, as is done after an Xid in any case.
            patience_s: how long to wait for these, in seconds; after that the report has the readings that there are.
        """

    def bus_states(self, gpus: tuple[str, ...]) -> Mapping[str, BusState]:
        """Return the state of GPUs on the PCI bus, by address, read now from files alone: this can't hang.

        `gpus` are PCI addresses; one that the bus does not show is reported as gone.
        """

    def end_health(self) -> None:
        """Stop observing. Idempotent."""


@runtime_checkable
class Metered(Protocol):
    """Optional ability: measure what the GPUs do.

    The vendor's own thread makes the library calls, the one that also observes health; no method waits for any.
    """

    def begin_metering(self, plan: MeterPlan) -> None:
        """Begin to measure, one round after the other; `plan` names the measures and the interval in seconds.

        Calling it again replaces the earlier plan.
        """

    def meter_report(self) -> MeterReport:
        """Return the newest reading of each GPU; while a call hangs, those are the readings from before it."""

    def end_metering(self) -> None:
        """Stop measuring. Idempotent."""


@runtime_checkable
class ProcessLister(Protocol):
    """Optional ability: list the processes on a GPU (asked before a vanished claim's device is handed out again)."""

    def processes(self, gpu: GpuFacts, partition: PartitionFacts | None) -> tuple[int, ...]:
        """Return the ids of the processes on the device, in ascending order, as this process's pid namespace has them.

        `partition` is the MIG partition of `gpu` that is meant, None for the whole GPU.

        Raises: HardwareError when the hardware can't report them, which must not be taken for "none".
        """


@runtime_checkable
class ComputeTested(Protocol):
    """Optional ability: show in a process of its own that a device computes."""

    def compute_program(self, gpu: GpuFacts, partition: PartitionFacts | None, *, is_thorough: bool) -> ComputeProgram:
        """Return the program that tests a device. Nothing is started here, and only files are read.

        Args:
            gpu: the GPU.
            partition: the MIG partition of `gpu` that is tested, None for the whole GPU.
            is_thorough: whether the test covers all of the memory and the copies, which takes minutes.

        Nothing is raised for a missing library: the program reports it.
        """
