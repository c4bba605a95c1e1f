"""A device as expressions see it.

In: a resource.k8s.io/v1 Device as a plain dict, and the name of its driver. Out: a `DeviceView`, converted once and
shared by any number of selectors. Quantities and versions are interned by text. Gates are not decided here: a view
keeps everything in which versions differ, and the selector reads the part that applies.

Source: Kubernetes' conversion of devices for CEL: the domain defaults to the driver, and one bad attribute spoils the
device.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dra_driver.model.quantity import Quantity
from dra_driver.model.quantity_text import QuantityError
from dra_driver.model.semver import Semver, SemverError
from dra_driver.selectors.library.access import Domains
from dra_driver.selectors.library.quantity import interned_quantity
from dra_driver.selectors.values.values import CelError, CelQuantity

_UNSUPPORTED = "unsupported attribute value"


class DeviceView:
    """One converted device. `problem` says why no selector can be evaluated on it; it is None for a good device."""

    __slots__ = ("attributes", "capacity", "driver", "list_fault", "list_problem", "problem", "shared")

    def __init__(self, driver: str) -> None:
        self.driver = driver
        self.attributes: dict[str, dict[str, Any]] = Domains()
        self.capacity: dict[str, dict[str, Any]] = Domains()
        self.shared = False  # allowMultipleAllocations
        self.problem: str | None = None
        self.list_problem: str | None = None  # like `problem`, for versions that do not support list values
        self.list_fault: str | None = None  # like `problem`, for versions that do

    def root(self, *, shows_sharing: bool, copies_quantities: bool = False) -> dict[str, Any]:
        """Return the value of the variable `device`; with `copies_quantities` an evaluation may change quantities."""
        capacity = self.capacity
        if copies_quantities:
            capacity = Domains()
            for domain, amounts in self.capacity.items():
                capacity[domain] = {name: CelQuantity(amount.number) for name, amount in amounts.items()}
        return {
            "driver": self.driver,
            "attributes": self.attributes,
            "capacity": capacity,
            "allowMultipleAllocations": self.shared and shows_sharing,
        }


def prepare_device(device: Mapping[str, Any], driver: str) -> DeviceView:
    """Convert a device for evaluation."""
    view = DeviceView(driver)
    view.shared = bool(device.get("allowMultipleAllocations"))
    attributes, capacity = view.attributes, view.capacity
    for name, attribute in (device.get("attributes") or {}).items():
        try:
            value = _attribute(attribute)
        except (SemverError, CelError) as error:
            _record_fault(view, name, attribute, error)
            continue
        if type(value) is list:
            view.list_problem = view.list_problem or f"attribute {name}: {_UNSUPPORTED}"
        domain, slash, identifier = name.partition("/")
        if not slash:
            domain, identifier = driver, name
        held = attributes.get(domain)
        if held is None:
            attributes[domain] = {identifier: value}
        else:
            held[identifier] = value
    for name, amount in (device.get("capacity") or {}).items():
        domain, slash, identifier = name.partition("/")
        if not slash:
            domain, identifier = driver, name
        try:
            quantity = _quantity(amount)
        except (CelError, QuantityError) as error:
            view.problem = view.problem or f"capacity {name}: {error}"
            continue
        capacity.setdefault(domain, {})[identifier] = quantity
    return view


def _record_fault(view: DeviceView, name: str, attribute: Any, error: SemverError | CelError) -> None:
    """Record that an attribute can't be converted."""
    text = error.message if isinstance(error, SemverError) else error.text
    words = f"parse semantic version: {text}" if isinstance(error, SemverError) else text
    if _holds_list(attribute):
        view.list_problem = view.list_problem or f"attribute {name}: {_UNSUPPORTED}"
        view.list_fault = view.list_fault or f"attribute {name}: {words}"
    else:
        view.problem = view.problem or f"attribute {name}: {words}"


def _quantity(amount: Any) -> CelQuantity:
    value = amount.get("value") if isinstance(amount, Mapping) else amount
    if isinstance(value, str):
        return interned_quantity(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return CelQuantity(Quantity.of(value))
    if value is None:
        return CelQuantity(Quantity(0))
    raise CelError("unsupported capacity value")


def _attribute(attribute: Any) -> Any:
    """Return the one value that an attribute holds."""
    if not isinstance(attribute, Mapping):
        raise CelError(_UNSUPPORTED)
    for kind, read in _READERS.items():
        value = attribute.get(kind)
        if value is not None:
            return read(value)
    raise CelError(_UNSUPPORTED)


def _holds_list(attribute: Any) -> bool:
    return isinstance(attribute, Mapping) and any(isinstance(value, list) for value in attribute.values())


def _int(value: Any) -> int:
    if type(value) is int and -(2**63) <= value < 2**63:
        return value
    raise CelError(_UNSUPPORTED)


def _bool(value: Any) -> bool:
    if type(value) is bool:
        return value
    raise CelError(_UNSUPPORTED)


def _string(value: Any) -> str:
    if type(value) is str:
        return value
    raise CelError(_UNSUPPORTED)


def _version(value: Any) -> Semver:
    return Semver.parse(_string(value))


def _list_of(read: Any) -> Any:
    def convert(values: Any) -> list[Any]:
        if type(values) is not list:
            raise CelError(_UNSUPPORTED)
        return [read(value) for value in values]

    return convert


_READERS: dict[str, Any] = {
    "int": _int,
    "bool": _bool,
    "string": _string,
    "version": _version,
    "ints": _list_of(_int),
    "bools": _list_of(_bool),
    "strings": _list_of(_string),
    "versions": _list_of(_version),
}
