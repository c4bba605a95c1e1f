"""The `metering` section of a GPU in a profile.

In: the fields of a section. Out: `SimulatedMetering`. Every field is optional; a field that is left out is not
measured, as by a GPU or a driver that lacks it. The names are those of `metered.Measure`; `instances` has the values of
each of the GPU's partitions by its GPU instance id, and `instance` those of all others. The fields are described in
docs/telemetry.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from dra_driver.documents.fields import Fields
from dra_driver.hardware.metered import Measure, ProcessUse, Values

_MAX_PERCENT = 100.0
_MAX_PROCESSES = 1000
_NUMBER = re.compile(r"[0-9]{1,16}(\.[0-9]{1,9})?")


@dataclass(frozen=True, slots=True)
class MeteredProcess:
    """The use that one process makes of the GPU or of one of its GPU instances."""

    use: ProcessUse
    gi_id: int | None = None


@dataclass(frozen=True, slots=True)
class SimulatedMetering:
    """The measurements of one GPU."""

    values: Values = field(default_factory=dict)
    instance: Values = field(default_factory=dict)
    instances: Mapping[int, Values] = field(default_factory=dict)
    processes: tuple[MeteredProcess, ...] = ()

    def of_instance(self, gi_id: int) -> Values:
        """Return the values of one GPU instance."""
        return self.instances.get(gi_id, self.instance)


NOT_METERED = SimulatedMetering()


def decode_metering(fields: Fields) -> SimulatedMetering:
    """Return a section as a value; the faults are collected by `fields`."""
    values = _values(fields)
    instance = fields.section("instance")
    by_id = fields.section("instances")
    instances: dict[int, Values] = {}
    for key, _ in by_id.entries():
        row = by_id.section(key)
        if str(key).isdecimal():
            instances[int(key)] = _values(row)
        else:
            by_id.fault(key, "expected the id of a GPU instance")
        row.close()
    processes = tuple(_process(row) for row in fields.rows("processes", maximum=_MAX_PROCESSES))
    found = SimulatedMetering(values, _values(instance), instances, processes)
    instance.close()
    fields.close()
    return found


def _values(fields: Fields) -> Values:
    found = {one: _number(fields, one) for one in Measure}
    return {one: value for one, value in found.items() if value is not None}


def _number(fields: Fields, key: str) -> float | None:
    """Return a number that is not negative, or None if it is missing; decimals are read from their text."""
    value = fields.any(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | str) or not _NUMBER.fullmatch(str(value)):
        fields.fault(key, f"expected a number that is not negative, got {value!r:.80}")
        return None
    return float(value)


def _process(row: Fields) -> MeteredProcess:
    use = ProcessUse(row.integer("pid", 1, 1 << 22), row.optional_integer("memoryBytes", 0, 1 << 50), _percent(row))
    found = MeteredProcess(use, row.optional_integer("gi", 0, 15))
    row.close()
    return found


def _percent(row: Fields) -> float | None:
    value = _number(row, "smPercent")
    if value is not None and value > _MAX_PERCENT:
        row.fault("smPercent", f"expected a percentage, got {value:g}")
    return value
