"""Exposition: samples as lines of Prometheus' text format, for families with thousands of samples.

In: names, kinds, label pairs, numbers. Out: text. Labels are turned into text once and used for many samples.
Source: Prometheus' exposition formats, text format 0.0.4.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_HEAD = b"\n# HELP "


class SampleKind(enum.StrEnum):
    """The types of families that are written here."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class FamilyHead:
    """The head of a family, which is written once.

    The name of a counter is written unchanged, whatever its suffix.
    """

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
    return ",".join([f'{name}="{_escaped(value)}"' for name, value in pairs if value])


def sample_line(name: str, labels: str, value: float) -> str:
    """Return one sample; a whole number is written without a fraction.

    >>> sample_line("power", 'gpu="0"', 312.5), sample_line("up", "", 1.0)
    ('power{gpu="0"} 312.5', 'up 1')
    """
    number = str(int(value)) if value.is_integer() else repr(value)
    return f"{name}{{{labels}}} {number}" if labels else f"{name} {number}"


def join_families(texts: Iterable[bytes]) -> bytes:
    """Return several texts as one in which each family appears once, as the format demands.

    The texts are those of `FamilyHead.lines` and `sample_line`: the samples of a family follow its head. The head is
    that of the first text that has the family.
    """
    joined: dict[bytes, list[bytes]] = {}
    for text in texts:
        for block in (b"\n" + text.rstrip(b"\n")).split(_HEAD)[1:]:  # a head begins a line
            pieces = joined.setdefault(block.partition(b" ")[0], [])
            pieces.append(block.split(b"\n", 2)[2] if pieces else _HEAD[1:] + block)
    return b"".join(piece + b"\n" for pieces in joined.values() for piece in pieces)


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
