"""Selection: which of a vendor's names are published, from a counters file of the common exporter.

In: a CSV file, one line for each field: name, type, meaning. Out: names with the type and meaning that the file gives
them, and the fields that become labels. Fields that are not known here are listed, not guessed. Source: dcgm-exporter's
etc/default-counters.csv; a line that begins with # is a comment.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from dra_driver.hardware.metric_names import MetricName, MetricNames
from dra_driver.model.errors import InputError
from dra_driver.telemetry.exposition import FamilyHead, SampleKind

MAX_BYTES = 1 << 20
_LABEL = "label"


@dataclass(frozen=True, slots=True)
class Selection:
    """What is published: names, and the fields that are labels of every series."""

    names: tuple[MetricName, ...]
    labels: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def default_selection(known: MetricNames) -> Selection:
    """Return the names and labels of a vendor that are published if no counters file is given."""
    return Selection(tuple(name for name in known.names if name.is_default), known.default_fields)


def read_selection(path: Path, known: MetricNames) -> Selection:
    """Return what a counters file selects of a vendor's names.

    Raises: InputError("input.counters") for a file that can't be read, or a line that is not valid.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        text = content.decode()
    except (OSError, UnicodeDecodeError) as fault:
        raise InputError("counters", f"the counters file {path} can't be read: {fault}") from fault
    if len(content) > MAX_BYTES:
        raise InputError("counters", f"the counters file {path} has more than {MAX_BYTES} bytes")
    by_name = {one.head.name: one for one in known.names}
    names: dict[str, MetricName] = {}
    labels: dict[str, None] = {}
    unknown: dict[str, None] = {}
    for name, kind, meaning in _rows(path, text):
        if kind == _LABEL and name in known.fields:
            labels[name] = None
        elif name in by_name and kind in (SampleKind.GAUGE, SampleKind.COUNTER):
            names[name] = replace(by_name[name], head=FamilyHead(name, SampleKind(kind), meaning))
        else:
            unknown[name] = None
    return Selection(tuple(names.values()), tuple(labels), tuple(unknown))


def _rows(path: Path, text: str) -> Iterator[tuple[str, str, str]]:
    lines = ((number, line.strip()) for number, line in enumerate(text.splitlines(), 1))
    for number, line in lines:
        if not line.strip(", ") or line.startswith("#"):
            continue
        fields = [field.strip() for field in next(csv.reader([line], skipinitialspace=True))]
        if len(fields) < 3 or fields[1] not in (*SampleKind, _LABEL, "summary"):
            raise InputError(
                "counters",
                f"{path}, line {number}: expected a field, a type and a meaning, got {line[:100]!r}",
                hint="for example: DCGM_FI_DEV_GPU_TEMP, gauge, GPU temperature (in C).",
            )
        yield fields[0], fields[1], ", ".join(fields[2:])
