"""Exposition: samples as lines of Prometheus' text format, for families with thousands of samples.

In: names, kinds, label pairs, numbers. Out: text. Labels are turned into text once and used for many samples.
Source: Prometheus' exposition formats, text format 0.0.4.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass


class SampleKind(enum.StrEnum):
    """The types of families that are written here."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class FamilyHead:
    """What is said once of a family. A counter is written under its name as it is, whatever that ends with."""

    name: str
    kind: SampleKind
    meaning: str

    def lines(self) -> Iterator[str]:
        """Yield the lines that precede the family's samples."""
        meaning = self.meaning.replace("\\", "\\\\").replace("\n", "\\n")
        yield f"# HELP {self.name} {meaning}"
        yield f"# TYPE {self.name} {self.kind}"


def labels_text(pairs: Iterable[tuple[str, str]]) -> str:
    """Return label pairs as they are between the braces; a label without a value is left out.

    >>> labels_text([("gpu", "0"), ("pod", ""), ("modelName", "NVIDIA L4")])
    'gpu="0",modelName="NVIDIA L4"'
    """
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs if value)


def sample_line(name: str, labels: str, value: float) -> str:
    """Return one sample; a whole number is written without a fraction.

    >>> sample_line("power", 'gpu="0"', 312.5), sample_line("up", "", 1.0)
    ('power{gpu="0"} 312.5', 'up 1')
    """
    number = str(int(value)) if value.is_integer() else repr(value)
    return f"{name}{{{labels}}} {number}" if labels else f"{name} {number}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
