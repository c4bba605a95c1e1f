"""Parts into which the hardware itself divides a GPU, and the whole GPU beside them.

A divided GPU and its parts exclude each other by counters: the whole consumes all parts. Its name sorts after the names
of its parts, so that a claim for any one device does not get the whole GPU. A scheduler that does not count is offered
only the parts. Pure.
"""

from __future__ import annotations

from dataclasses import replace

from dra_driver.inventory.gpu_offer import GpuOffer
from dra_driver.inventory.mig.counters import counter_set_name
from dra_driver.inventory.mig.current_gpus import CurrentGpu

PARTS = "parts"


def with_counted_parts(offer: GpuOffer, current: CurrentGpu) -> GpuOffer:
    """Return the offer with the GPU's parts counted, if it has any and the whole GPU is offered beside them."""
    parts = current.gpu.parts
    if not parts:
        return offer
    shared = counter_set_name(current.gpu)
    devices = tuple(replace(one, counter_set=shared, counters={PARTS: one.gpu.parts or 1}) for one in offer.devices)
    plain = tuple(one for one in offer.plain if not one.gpu.parts)
    return replace(offer, devices=devices, plain=plain, counter_sets={shared: {PARTS: parts}})
