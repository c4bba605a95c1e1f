"""Content: the devices and counter sets of a pool, in the form of the API.

In: an offering in the form for one server. Out: device and counter-set wires, with taints as the server's version
accepts them. Pure.

Source: Kubernetes API resource/v1 DeviceTaint: 1.34 allows 4 taints on a device and no effect None, newer ones 16.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dra_driver.inventory.offering import Offering
from dra_driver.inventory.wire import counter_set_wire, device_wire
from dra_driver.model import limits
from dra_driver.model.kubernetes import Since, is_before
from dra_driver.model.taints import DeviceTaint, TaintEffect
from dra_driver.model.wire import DeviceWire, Wire

_BY_WEIGHT = (TaintEffect.NO_EXECUTE, TaintEffect.NO_SCHEDULE, TaintEffect.NONE)


@dataclass(frozen=True, slots=True)
class PoolContent:
    """The devices and counter sets of a pool."""

    devices: tuple[DeviceWire, ...] = ()
    counter_sets: tuple[Wire, ...] = ()


def content_of(offering: Offering, *, server_minor: int) -> PoolContent:
    """Return an offering in the form of the API. `server_minor` 0, an unknown version, is taken for the newest."""
    devices = []
    for device in offering.devices:
        wire = device_wire(device)
        if taints := accepted_taints(offering.taints.get(device.name, ()), server_minor=server_minor):
            wire["taints"] = [taint.wire() for taint in taints]
        devices.append(wire)
    return PoolContent(tuple(devices), tuple(counter_set_wire(*item) for item in offering.counter_sets.items()))


def accepted_taints(taints: Sequence[DeviceTaint], *, server_minor: int) -> tuple[DeviceTaint, ...]:
    """Return the taints that a server accepts on one device; if there are too many, the mildest are left out.

    Among those of one effect, the first ones stay. The result is in the order of effect, key and value, so that the
    same taints are always written in the same way.
    """
    is_old = is_before(server_minor, Since.INFORMING_TAINTS)
    known = [taint for taint in taints if taint.effect.is_blocking or not is_old]
    known.sort(key=lambda taint: _BY_WEIGHT.index(taint.effect))
    kept = known[: limits.TAINTS_PER_DEVICE_1_34 if is_old else limits.TAINTS_PER_DEVICE]
    return tuple(sorted(kept, key=lambda taint: (_BY_WEIGHT.index(taint.effect), taint.key, taint.value)))
