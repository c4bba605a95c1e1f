"""What a vendor declares, and how a vendor of the registry is loaded.

Each vendor's folder has a module `vendor` with one value, `VENDOR`. No code of a vendor is imported before it is asked
for, so that a node pays only for the vendors that it has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from dra_driver.base.flags import registered
from dra_driver.base.wire import Strategy
from dra_driver.hardware.facts import Facts, GpuFacts
from dra_driver.hardware.port import Hardware, Roots
from dra_driver.hardware.published import Published

if TYPE_CHECKING:
    from dra_driver.hardware.metered import MetricNames


@dataclass(frozen=True, slots=True)
class VendorClass:
    """A DeviceClass of a vendor. `notes` are its comment; `extended_resource` is what pods may ask for instead."""

    name: str
    notes: str
    expression: str
    extended_resource: str = ""


@dataclass(frozen=True, slots=True)
class ReferencePage:
    """The page in docs/ that lists, between two marks, what a vendor's devices are published with.

    `closing` is the text below the tables; it may contain the number of values of each type of device ({gpu}, {mig} …).
    `more` are rows that no device carries under exactly that name.
    """

    file: str
    closing: str = ""
    more: tuple[Published, ...] = ()


@dataclass(frozen=True, slots=True)
class DevicePluginSigns:
    """How a vendor's device plugins are recognised: prefixes of their resources, and a pattern of their sockets."""

    resources: tuple[str, ...]
    sockets: str


@dataclass(frozen=True, slots=True)
class PassthroughTerms:
    """How a vendor's GPUs are passed to virtual machines.

    With `has_api_device` a claim always gets the node by which a virtual machine maps memory, as with the vendor's own
    driver. `with_pci_facts` completes the facts of a function that no driver of the host has had in this boot from what
    the bus shows of it.
    """

    with_pci_facts: Callable[[GpuFacts, Roots], GpuFacts]
    has_api_device: bool = False


@dataclass(frozen=True, slots=True)
class SharingTerms:
    """How a vendor's devices can be shared: by which strategies, and a text about what hard memory limits need."""

    strategies: tuple[Strategy, ...]
    limits_need: str


@dataclass(frozen=True, slots=True)
class Vendor:
    """Everything that a vendor declares beside its driver's name, which the registry has.

    `title` is its name in texts. `open` returns its hardware behind the port, which has an ability if it implements the
    ability's protocol. `gpu` is the type of its facts. `rows` are the names that its devices are published with, in the
    domain of its driver. While a device plugin with the signs of `device_plugin` serves its devices, none is offered.
    `labels` returns the labels of a node with such GPUs; it is None if no software expects any. `metric_names` returns
    the names of its own exporter, under which its readings are published (`port.Metered`). `generated_classes` are the
    files below deviceclasses/ that `make docs` writes; others may be there, written by hand. `sharing` is how its
    devices can be shared, None if they can't; `is_tested` is whether they can be tested by a program that computes on
    them, and `is_reset` whether this driver can reset them. `passthrough` is what its GPUs for virtual machines need,
    None if it has none.
    """

    title: str
    open: Callable[[Roots], Hardware]
    gpu: type[GpuFacts]
    rows: tuple[Published, ...]
    page: ReferencePage
    device_plugin: DevicePluginSigns
    generated_classes: tuple[VendorClass, ...] = ()
    labels: Callable[[Facts, Roots], Mapping[str, str]] | None = None
    metric_names: Callable[[], MetricNames] | None = None
    sharing: SharingTerms | None = None
    is_tested: bool = False
    is_reset: bool = False
    passthrough: PassthroughTerms | None = None


@cache
def load_vendor(name: str) -> Vendor:
    """Return what a vendor of the registry declares. Raises: KeyError for a name that is not registered."""
    if registered(name) is None:
        raise KeyError(name)
    declared = import_module(f"dra_driver.hardware.{name}.vendor").VENDOR
    if not isinstance(declared, Vendor):
        raise TypeError(f"dra_driver.hardware.{name}.vendor.VENDOR is not a Vendor")
    return declared
