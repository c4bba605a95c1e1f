"""The parts of the JSON schemas of documents: types, lists, records, and objects of the API.

In: names and schemas. Out: schemas (draft 2020-12). Devices have only the fields that this driver writes; allocation
results, which it passes on, may have others.
"""

from __future__ import annotations

from collections.abc import Mapping

from dra_driver.model.wire import Wire

TEXT: Wire = {"type": "string"}
MAYBE_TEXT: Wire = {"type": ["string", "null"]}
FLAG: Wire = {"type": "boolean"}
MAYBE_FLAG: Wire = {"type": ["boolean", "null"]}
COUNT: Wire = {"type": "integer", "minimum": 0}
MAYBE_COUNT: Wire = {"type": ["integer", "null"], "minimum": 0}
SHARE: Wire = {"type": "number", "minimum": 0}
QUANTITY: Wire = {"type": "string", "pattern": "^[0-9.+-]+[a-zA-Z0-9]*$"}


def list_of(items: Wire) -> Wire:
    """Return the schema of a list."""
    return {"type": "array", "items": items}


def map_of(values: Wire) -> Wire:
    """Return the schema of an object whose keys are names."""
    return {"type": "object", "additionalProperties": values}


def maybe(schema: Wire) -> Wire:
    """Return the schema of a value that may be null."""
    return {"anyOf": [schema, {"type": "null"}]}


def one_of(*values: str) -> Wire:
    """Return the schema of one of these texts."""
    return {"enum": list(values)}


def record(optional: Mapping[str, Wire] | None = None, /, **fields: Wire) -> Wire:
    """Return the schema of an object that has all of these fields, may have the `optional` ones, and has no other."""
    properties = {**fields, **(optional or {})}
    return {"type": "object", "properties": properties, "required": list(fields), "additionalProperties": False}


TEXTS = list_of(TEXT)
COUNTS = map_of(COUNT)

# -- objects of resource.k8s.io/v1 -------------------------------------------------------------------------------------

_VALUES: dict[str, Wire] = {"string": TEXT, "int": {"type": "integer"}, "bool": FLAG, "version": TEXT}
_LISTS = {f"{name}s": list_of(value) for name, value in _VALUES.items()}
_ATTRIBUTE: Wire = {**record(_VALUES | _LISTS), "minProperties": 1, "maxProperties": 1}
_RANGE = record({"min": QUANTITY, "max": QUANTITY, "step": QUANTITY})
_POLICY = record({"validValues": list_of(QUANTITY), "validRange": _RANGE}, default=QUANTITY)
_CAPACITY = record({"requestPolicy": _POLICY}, value=QUANTITY)
_AMOUNTS = map_of(record(value=QUANTITY))
TAINT = record({"value": TEXT, "timeAdded": TEXT}, key=TEXT, effect=TEXT)
COUNTER_SET = record(name=TEXT, counters=_AMOUNTS)
DEVICE = record(
    {
        "attributes": map_of(_ATTRIBUTE),
        "capacity": map_of(_CAPACITY),
        "allowMultipleAllocations": FLAG,
        "consumesCounters": list_of(record(counterSet=TEXT, counters=_AMOUNTS)),
        "taints": list_of(TAINT),
    },
    name=TEXT,
)
_RESULT: Wire = {
    "type": "object",
    "properties": {
        **dict.fromkeys(("request", "driver", "pool", "device", "shareID"), TEXT),
        "adminAccess": MAYBE_FLAG,
        "consumedCapacity": map_of(QUANTITY),
    },
    "required": ["request", "driver", "pool", "device"],
}
ALLOCATION: Wire = {
    "type": "object",
    "properties": {"devices": {"type": "object", "properties": {"results": list_of(_RESULT)}}},
    "required": ["devices"],
}
