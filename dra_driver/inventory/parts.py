"""Parts into which the hardware itself divides a GPU now, and the whole GPU beside them.

A divided GPU and its parts exclude each other by counters: the whole consumes all parts. Its name comes after the names
of its parts, so that a claim for any device is not given all of them. A scheduler that does not count is offered only
the parts. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from dra_driver.hardware.facts import GpuFacts
from dra_driver.inventory.device import Device
from dra_driver.inventory.mig.partitions import counter_set_name

PARTS = "parts"


def counter_sets_of(gpus: Collection[GpuFacts]) -> dict[str, Mapping[str, int]]:
    """Return the counters of the GPUs that are offered whole beside their parts."""
    return {counter_set_name(gpu): {PARTS: gpu.parts} for gpu in gpus if gpu.parts}


def counted(device: Device, counter_sets: Collection[str]) -> Device:
    """Return a device with the counters that it consumes, if it is a part of a GPU or all parts of one."""
    name = counter_set_name(device.gpu)
    taken = device.gpu.parts or (1 if device.gpu.part else 0)
    return replace(device, counter_set=name, counters={PARTS: taken}) if taken and name in counter_sets else device
