"""Build: facts in, devices out.

Pure and total: any facts yield an inventory, and what can't be published is left out and listed in its problems.
Devices are ordered by name; the same facts yield the same inventory.

The offer of each GPU goes through the same stages, one after another: a device that a rule shares is offered as shares
(`sharing`), a GPU that Prepare may partition as every placement (`mig.on_demand`), a GPU that the hardware has divided
as its parts (`parts`), and one that virtual machines may have also to those (`passthrough`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dra_driver.hardware.facts import Facts
from dra_driver.inventory.channel import channel_offer
from dra_driver.inventory.describing import Describer
from dra_driver.inventory.device import Device
from dra_driver.inventory.gpu_offer import GpuOffer
from dra_driver.inventory.mig.current_gpus import current_gpus
from dra_driver.inventory.mig.on_demand import with_placements
from dra_driver.inventory.mig.partitions import STATIC, MigPolicy
from dra_driver.inventory.offering import Inventory, Offering
from dra_driver.inventory.parts import with_counted_parts
from dra_driver.inventory.passthrough.offers import with_passthrough_device
from dra_driver.inventory.sharing.offers import SharingOffers
from dra_driver.inventory.sharing.rules import NOTHING_SHARED, SharingRules
from dra_driver.model.names import is_dns_label


def build_inventory(facts: Facts, policy: MigPolicy = STATIC, sharing: SharingRules = NOTHING_SHARED) -> Inventory:
    """Return the devices that these facts are published as, with every problem found on the way.

    Never raises for facts that can't be published: those become problems. The same arguments yield the same inventory.
    """
    describer = Describer(facts)
    current = current_gpus(facts.gpus, policy, describer)
    shares = SharingOffers(sharing, policy.ownership, describer, current)
    offers = []
    for gpu in current:
        offer = shares.offer(gpu)
        offer = with_placements(offer, gpu, describer)
        offer = with_counted_parts(offer, gpu)
        offers.append(with_passthrough_device(offer, gpu, policy.ownership.held, describer))
    if facts.channel is not None:
        offers.append(channel_offer(facts.channel, policy.ownership.forms))
    return _inventory(facts, GpuOffer.combined(offers), describer)


def _inventory(facts: Facts, offer: GpuOffer, describer: Describer) -> Inventory:
    """Return everything that a node offers, in the order of names, with the problems found on the way."""
    devices, plain = (_named(one, describer) for one in (offer.devices, offer.plain))
    offering = Offering(
        devices=devices,
        counter_sets=offer.counter_sets,
        plain=plain if offer.counter_sets else (),
        instead=dict(sorted(offer.instead.items())),
    )
    return Inventory(
        offering,
        problems=tuple(dict.fromkeys((*facts.problems, *describer.problems))),
        waiting_for=facts.waiting_for,
        hidden=_by_name({device.name: device for device in offer.hidden}),
        waits_for_claims=offer.waits_for_claims,
        driver_version=facts.driver_version,
    )


def _named(devices: Iterable[Device], describer: Describer) -> tuple[Device, ...]:
    """Return the devices in the order of their names, without those whose name is invalid or already taken."""
    named: dict[str, Device] = {}
    for device in devices:
        if not is_dns_label(device.name):
            describer.report("name-invalid", device, f"{device.name!r} is not a valid device name")
        elif device.name in named:
            describer.report("name-taken", device, f"another device is already named {device.name}")
        else:
            named[device.name] = device
    return _by_name(named)


def _by_name(devices: Mapping[str, Device]) -> tuple[Device, ...]:
    return tuple(devices[name] for name in sorted(devices))
