"""Wire form of a device: an entry of `spec.devices` of a ResourceSlice.

In: a `Device`. Out: a plain dict in the form in which the API server returns it (quantities in canonical text), so that
the desired and the stored state can be compared directly. Taints are added by the code that writes slices.

Parts that many devices have in common are one object, which saves 2 MiB: 200 placements have only 26 shapes and hardly
any value of their own. A wire dict must therefore never be modified: a caller that needs another one makes a copy.

Source: Kubernetes API resource/v1 Device, DeviceAttribute, DeviceCapacity.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from dra_driver.inventory.device import AttributeValue, Device, RequestPolicy
from dra_driver.model.quantity import Quantity
from dra_driver.model.wire import DeviceWire, Wire

_IN_BYTES = frozenset({"memory"})  # this name is used for a capacity and for a counter
_SHAPES, _VALUES = 256, 4096  # sizes of the caches; what does not fit is computed again


def device_wire(device: Device) -> DeviceWire:
    """Return the device in the form that the API accepts.

    >>> from dra_driver.hardware.facts import GpuFacts
    >>> from dra_driver.model.shares import DeviceType
    >>> gpu = GpuFacts(uuid="GPU-1", pci_address="0000:65:00.0", minor=0, memory_bytes=80 << 30)
    >>> device_wire(Device("gpu-0000-65-00-0", DeviceType.GPU, {"type": "gpu"}, {"memory": 80 << 30}, gpu))
    {'name': 'gpu-0000-65-00-0', 'attributes': {'type': {'string': 'gpu'}}, 'capacity': {'memory': {'value': '80Gi'}}}
    """
    wire: DeviceWire = {"name": device.name}
    if device.attributes:
        wire["attributes"] = {name: attribute_wire(value) for name, value in device.attributes.items()}
    if device.capacity:
        wire["capacity"] = _quantities(tuple(device.capacity.items()))
    if device.policies:
        wire["allowMultipleAllocations"] = True
        policies = {name: {"requestPolicy": _policy_wire(name, policy)} for name, policy in device.policies.items()}
        wire["capacity"] = {name: {**value, **policies.get(name, {})} for name, value in wire["capacity"].items()}
    if device.counter_set:
        counters = _quantities(tuple(device.counters.items()))
        wire["consumesCounters"] = [{"counterSet": device.counter_set, "counters": counters}]
    return wire


def counter_set_wire(name: str, counters: Mapping[str, int]) -> Wire:
    """Return a set of shared counters in the form that the API accepts.

    >>> counter_set_wire("gpu-a", {"memory-slice-0": 1})
    {'name': 'gpu-a', 'counters': {'memory-slice-0': {'value': '1'}}}
    """
    return {"name": name, "counters": _quantities(tuple(counters.items()))}


@lru_cache(_SHAPES)
def _quantities(values: tuple[tuple[str, int], ...]) -> Wire:
    return {name: {"value": quantity_text(name, value)} for name, value in values}


def _policy_wire(name: str, policy: RequestPolicy) -> Wire:
    wire: Wire = {"default": quantity_text(name, policy.default)}
    if policy.values:
        wire["validValues"] = [quantity_text(name, value) for value in policy.values]
    elif policy.minimum is not None:
        limits = {"min": policy.minimum, "max": policy.maximum, "step": policy.step}
        wire["validRange"] = {key: quantity_text(name, value) for key, value in limits.items() if value is not None}
    return wire


@lru_cache(_VALUES, typed=True)  # typed, because True and 1 are different values here
def attribute_wire(value: AttributeValue) -> Wire:
    """Return one attribute value under the key of its type.

    >>> attribute_wire(("version", "9.0.0")), attribute_wire(True), attribute_wire(3)
    ({'version': '9.0.0'}, {'bool': True}, {'int': 3})
    """
    if isinstance(value, tuple):
        kind, text = value
        return {kind: text}
    if isinstance(value, bool):  # checked before int, because a bool is an int
        return {"bool": value}
    return {"int": value} if isinstance(value, int) else {"string": value}


@lru_cache(_VALUES)
def quantity_text(name: str, value: int) -> str:
    """Return a capacity as the server writes it: bytes with binary suffixes, counts with decimal ones.

    The server returns a number of bytes that no binary suffix divides as a plain decimal, so it is written as one.

    >>> quantity_text("memory", 81559 << 20), quantity_text("multiprocessors", 132), quantity_text("memory", 125000)
    ('81559Mi', '132', '125k')
    """
    return str(Quantity.parse(str(Quantity.of(value, binary=name in _IN_BYTES))))
