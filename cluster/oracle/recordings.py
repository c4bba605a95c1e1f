"""The recorded verdicts: written by the lane, read by `make test`.

In: verdicts of every edition. Out: a compressed file of JSON lines. The first line has the versions of Kubernetes'
packages that answered; then comes one line for each case: the case, and its verdict in each edition, or "=" where the
verdict is that of the edition before.
"""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
SELECTORS = FOLDER / "recorded" / "selectors.jsonl.xz"
ALLOCATIONS = FOLDER / "recorded" / "allocations.jsonl.xz"
MISTAKES = FOLDER / "recorded" / "mistakes.jsonl.xz"
SAME = "="


def pins() -> dict[str, str]:
    """Return the version of Kubernetes' packages that each module file pins."""
    found = {}
    for file in sorted((FOLDER / "pins").glob("*.mod")):
        (version,) = re.findall(r"k8s\.io/dynamic-resource-allocation (v\S+)", file.read_text())
        found[file.stem] = version
    return found


def write(path: Path, editions: Sequence[str], cases: Iterable[tuple[Any, Sequence[Any]]]) -> None:
    """Write a recording: each case with its verdicts, edition by edition."""
    lines = [_line({"editions": list(editions), "packages": pins()})]
    for case, verdicts in cases:
        before: Any = None
        row: list[Any] = [case]
        for verdict in verdicts:
            row.append(SAME if verdict == before else verdict)
            before = verdict
        lines.append(_line(row))
    path.write_bytes(lzma.compress("".join(lines).encode(), preset=9 | lzma.PRESET_EXTREME))


def header(path: Path) -> dict[str, Any]:
    """Return which editions were recorded, with which packages."""
    found: dict[str, Any] = json.loads(next(_lines(path)))
    return found


def read(path: Path, edition: str) -> Iterator[tuple[Any, Any]]:
    """Yield each case with its verdict in one edition."""
    lines = _lines(path)
    place = json.loads(next(lines))["editions"].index(edition)
    for line in lines:
        case, *verdicts = json.loads(line)
        yield case, next(one for one in reversed(verdicts[: place + 1]) if one != SAME)


def _lines(path: Path) -> Iterator[str]:
    return iter(lzma.decompress(path.read_bytes()).decode().splitlines())


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=True, separators=(",", ":")) + "\n"
