"""The IMEX channel of a node: one device for all programs on the node that belong to the fabric's trust domain.

It belongs to no GPU. If the API server keeps the fields for shares, any number of claims get the channel; if not, one
claim gets it, which several pods of the node can share. Pure.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from dra_driver.hardware.facts import ChannelFacts, GpuFacts
from dra_driver.hardware.published.rows import SHARES
from dra_driver.inventory.device import AttributeValue, Device, RequestPolicy
from dra_driver.inventory.gpu_offer import GpuOffer
from dra_driver.model.shares import DeviceType

CHANNEL = "imex-channel-0"
SHARES_OF_CHANNEL = 4096  # more pods than a node can have


def channel_offer(channel: ChannelFacts, forms: Collection[tuple[str, bool]]) -> GpuOffer:
    """Return what the channel is offered as; `forms` are the forms in which claims hold devices (`Ownership.forms`)."""
    shared, whole = channel_devices(channel)
    if (CHANNEL, False) in forms:  # a claim holds it as a whole device, so it is offered whole until that claim ends
        return GpuOffer((whole,), (whole,), {CHANNEL: (whole,)}, waits_for_claims=True)
    return GpuOffer((shared,), (shared,), {CHANNEL: (whole,)})


def channel_devices(channel: ChannelFacts) -> tuple[Device, Device]:
    """Return the device for a server that keeps shares, and the one for a server that does not."""
    no_gpu = GpuFacts(uuid="", pci_address="", minor=-1, memory_bytes=None, link_domain=channel.domain)
    attributes: dict[str, AttributeValue] = {
        "type": DeviceType.IMEX_CHANNEL.value,
        "id": 0,
        "nvlinkDomain": channel.domain,
    }
    whole = Device(CHANNEL, DeviceType.IMEX_CHANNEL, attributes, {}, no_gpu)
    policies = {SHARES: RequestPolicy(default=1, values=(1,))}
    return replace(whole, capacity={SHARES: SHARES_OF_CHANNEL}, policies=policies), whole
