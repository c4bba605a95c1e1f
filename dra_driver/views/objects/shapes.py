"""The shapes of Kubernetes objects, checked before any other code reads them.

In: an object as a user wrote it. Out: nothing, or an error that names the invalid field. Fields that are null are
removed, as the API server does; fields that this program does not read are not checked.

Source: Kubernetes API resource/v1 and core/v1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dra_driver.allocation.pools.replicas import Replica
from dra_driver.model.errors import InputError
from dra_driver.model.quantity import Quantity, QuantityError


@dataclass(frozen=True, slots=True, eq=False)
class Scalar:
    """One value of one of several types."""

    what: str
    types: frozenset[type]
    is_quantity: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Many:
    """A list of values of one shape."""

    of: Shape


@dataclass(frozen=True, slots=True, eq=False)
class Named:
    """A mapping whose keys are chosen by the object's author."""

    of: Shape


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """A mapping with these fields; other fields are ignored."""

    fields: Mapping[str, Shape] = field(default_factory=dict)
    required: frozenset[str] = frozenset()


Shape = Scalar | Many | Named | Record

_TEXT = Scalar("a text", frozenset({str}))
_INT = Scalar("a whole number", frozenset({int}))
_FLAG = Scalar("true or false", frozenset({bool}))
_ANY_SCALAR = Scalar("a value", frozenset({str, int, bool, float}))
_QUANTITY = Scalar("a quantity", frozenset({str, int, float}), is_quantity=True)
_TEXTS = Many(_TEXT)


def _record(required: str = "", **fields: Shape) -> Record:
    return Record(fields, frozenset(required.split()))


_OWNERS = Many(_record(kind=_TEXT, name=_TEXT, controller=_FLAG))
_META = _record(
    "name",
    name=_TEXT,
    namespace=_TEXT,
    uid=_TEXT,
    labels=Named(_TEXT),
    annotations=Named(_TEXT),
    deletionTimestamp=_ANY_SCALAR,
    ownerReferences=_OWNERS,
)
_REQUIREMENT = _record("key operator", key=_TEXT, operator=_TEXT, values=_TEXTS)
_TERM = _record(matchExpressions=Many(_REQUIREMENT), matchFields=Many(_REQUIREMENT))
_NODE_SELECTOR = _record(nodeSelectorTerms=Many(_TERM))
_COUNTERS = Named(_record(value=_QUANTITY))
_RANGE = _record(min=_QUANTITY, max=_QUANTITY, step=_QUANTITY)
_POLICY = _record(default=_QUANTITY, validValues=Many(_QUANTITY), validRange=_RANGE)
_DEVICE = _record(
    "name",
    name=_TEXT,
    attributes=Named(_record(string=_ANY_SCALAR, int=_ANY_SCALAR, bool=_ANY_SCALAR, version=_ANY_SCALAR)),
    capacity=Named(_record(value=_QUANTITY, requestPolicy=_POLICY)),
    taints=Many(_record(key=_TEXT, value=_TEXT, effect=_TEXT)),
    consumesCounters=Many(_record("counterSet", counterSet=_TEXT, counters=_COUNTERS)),
    allowMultipleAllocations=_FLAG,
    bindingConditions=_TEXTS,
    bindingFailureConditions=_TEXTS,
    bindsToNode=_FLAG,
    nodeName=_TEXT,
    nodeSelector=_NODE_SELECTOR,
    allNodes=_FLAG,
)
_SLICE = _record(
    "driver pool",
    driver=_TEXT,
    pool=_record("name", name=_TEXT, generation=_INT, resourceSliceCount=_INT),
    nodeName=_TEXT,
    nodeSelector=_NODE_SELECTOR,
    allNodes=_FLAG,
    perDeviceNodeSelection=_FLAG,
    sharedCounters=Many(_record("name", name=_TEXT, counters=_COUNTERS)),
    devices=Many(_DEVICE),
)
_SELECTORS = Many(_record(cel=_record("expression", expression=_TEXT)))
_CLASS_SELECTORS = Many(_record("cel", cel=_record("expression", expression=_TEXT)))
_TOLERATIONS = Many(_record(key=_TEXT, operator=_TEXT, value=_TEXT, effect=_TEXT))
_ALTERNATIVE: dict[str, Shape] = {
    "name": _TEXT,
    "deviceClassName": _TEXT,
    "allocationMode": _TEXT,
    "count": _INT,
    "adminAccess": _FLAG,
    "selectors": _SELECTORS,
    "tolerations": _TOLERATIONS,
    "capacity": _record(requests=Named(_QUANTITY)),
}
_REQUEST = _record(
    "name", name=_TEXT, exactly=Record(_ALTERNATIVE), firstAvailable=Many(Record(_ALTERNATIVE, frozenset({"name"})))
)
_DEVICES = _record(
    requests=Many(_REQUEST),
    constraints=Many(_record(requests=_TEXTS, matchAttribute=_TEXT, distinctAttribute=_TEXT)),
    config=Many(_record(requests=_TEXTS)),
)
_CLAIM = _record(devices=_DEVICES)
_RESULT = _record(
    "request driver pool device",
    request=_TEXT,
    driver=_TEXT,
    pool=_TEXT,
    device=_TEXT,
    shareID=_TEXT,
    adminAccess=_FLAG,
    consumedCapacity=Named(_QUANTITY),
)
_CLAIM_STATUS = _record(
    allocation=_record(devices=_record(results=Many(_RESULT))), reservedFor=Many(_record("name", name=_TEXT, uid=_TEXT))
)
_CONTAINER = _record(resources=_record(limits=Named(_QUANTITY), requests=Named(_QUANTITY)))
_POD = _record(
    containers=Many(_CONTAINER),
    initContainers=Many(_CONTAINER),
    schedulingGates=Many(_record(name=_TEXT)),
    nodeName=_TEXT,
    nodeSelector=Named(_TEXT),
    tolerations=_TOLERATIONS,
    affinity=_record(nodeAffinity=_record(requiredDuringSchedulingIgnoredDuringExecution=_NODE_SELECTOR)),
    resourceClaims=Many(_record("name", name=_TEXT, resourceClaimName=_TEXT, resourceClaimTemplateName=_TEXT)),
)
_POD_STATUS = _record(
    phase=_TEXT,
    conditions=Many(_record(type=_TEXT, status=_TEXT)),
    extendedResourceClaimStatus=_record(resourceClaimName=_TEXT),
    resourceClaimStatuses=Many(_record("name", name=_TEXT, resourceClaimName=_TEXT)),
)
_NODE = _record(unschedulable=_FLAG, taints=Many(_record("key effect", key=_TEXT, effect=_TEXT, value=_TEXT)))
_UNNAMED_META = Record(_META.fields)  # a claim or pod that has not been created yet may have only a generateName
_OBJECTS: dict[str, Record] = {
    "ResourceSlice": _record("metadata spec", metadata=_META, spec=_SLICE),
    "ResourceClaim": _record("metadata", metadata=_UNNAMED_META, spec=_CLAIM, status=_CLAIM_STATUS),
    "ResourceClaimTemplate": _record("metadata spec", metadata=_META, spec=_record("spec", spec=_CLAIM)),
    "DeviceClass": _record(
        "metadata",
        metadata=_META,
        spec=_record(selectors=_CLASS_SELECTORS, config=Many(Record()), extendedResourceName=_TEXT),
    ),
    "Node": _record("metadata", metadata=_META, spec=_NODE, status=_record(allocatable=Named(_QUANTITY))),
    "Pod": _record("metadata spec", metadata=_UNNAMED_META, spec=_POD, status=_POD_STATUS),
}
_GOOD_MAX = 65_536


class ShapeChecker:
    """Checks objects. A value that was found valid is not checked again in another object that shares it."""

    def __init__(self) -> None:
        self._good: dict[
            int, dict[int, Any]
        ] = {}  # by shape, then by id(); the values are kept so that their ids stay unique

    def knows(self, kind: str) -> bool:
        """Return whether there is a shape for a kind."""
        return kind in _OBJECTS

    def check(self, kind: str, wire: Any, at: str) -> None:
        """Check an object of a kind; `at` is where it was found. Raises: InputError("input.object")."""
        self._check(_OBJECTS[kind], wire, f"{at}: {kind} {_name(wire)}", "")

    def check_devices(self, wire: Any, at: str) -> None:
        """Check `spec.devices` of a claim. Raises: InputError("input.object")."""
        self._check(_DEVICES, wire, at, "")

    def _check(self, shape: Shape, value: Any, at: str, path: str) -> None:
        match shape:
            case Record():
                self._record(shape, value, at, path)
            case Named():
                self._named(shape, _typed(value, dict, "a mapping", at, path), at, path)
            case Many() if isinstance(value, Replica):
                self._check_shared(shape, value.shape.wires, at, path)
            case Many():
                for number, entry in enumerate(_typed(value, list, "a list", at, path)):
                    self._check(shape.of, entry, at, f"{path}[{number}]")
            case Scalar():
                if type(value) not in shape.types:
                    raise _fault(shape.what, value, at, path)
                if shape.is_quantity:
                    _check_quantity(value, at, path)

    def _check_shared(self, shape: Many, wires: Any, at: str, path: str) -> None:
        """Check the devices that many slices have in common, once."""
        good = self._good.setdefault(id(shape), {})
        if id(wires) not in good:
            self._check(shape, wires, at, path)
            good[id(wires)] = wires

    def _record(self, shape: Record, value: Any, at: str, path: str) -> None:
        held = _typed(value, dict, "a mapping", at, path)
        for name in [name for name, inner in held.items() if inner is None]:
            del held[name]
        for name in shape.required - held.keys():
            raise InputError("object", f"{at}: {path}.{name} is missing".replace(": .", ": "))
        for name, inner in shape.fields.items():
            if name in held:
                self._check(inner, held[name], at, f"{path}.{name}")

    def _named(self, shape: Named, held: dict[Any, Any], at: str, path: str) -> None:
        good = self._good.setdefault(id(shape), {})
        if good.keys() >= set(map(id, held.values())) and all(type(name) is str for name in held):
            return
        for name, inner in held.items():
            if type(name) is not str:
                raise _fault("named by texts", name, at, path)
            self._check(shape.of, inner, at, f"{path}.{name[:80]}")
            if len(good) < _GOOD_MAX:
                good[id(inner)] = inner


def _typed(value: Any, wanted: type, what: str, at: str, path: str) -> Any:
    if type(value) is not wanted:
        raise _fault(what, value, at, path)
    return value


def _check_quantity(value: Any, at: str, path: str) -> None:
    try:
        Quantity.parse(value if isinstance(value, str) else str(value))
    except QuantityError as error:
        raise InputError("object", f"{at}: {path.lstrip('.')}: {error.message}") from error


def _fault(what: str, value: Any, at: str, path: str) -> InputError:
    return InputError("object", f"{at}: {path.lstrip('.') or 'it'} is not {what} but {type(value).__name__}")


def _name(wire: Any) -> str:
    metadata = wire.get("metadata") if isinstance(wire, dict) else None
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return name[:253] if isinstance(name, str) else "?"
