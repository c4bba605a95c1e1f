"""The laws of the house that import-linter does not know: sizes of folders, and one class name for one thing."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import dra_driver

ROOT = Path(dra_driver.__file__).parent
FILES = [path for path in sorted(ROOT.rglob("*.py")) if "_proto" not in path.parts]
MOST_FILES = 20
# Sub-rooms were tried there, and each would import upwards from another.
MAY_BE_LARGER = {ROOT / "hardware" / "nvidia": 27}
VENDORS = ROOT / "hardware"


def room_of(path: Path) -> Path:
    """Return the folder that a class belongs to; all vendors are one, because each implements the same port."""
    return VENDORS if path.is_relative_to(VENDORS) else path.parent


def test_no_folder_has_more_files_than_can_be_taken_in_at_once() -> None:
    counts: dict[Path, int] = defaultdict(int)
    for path in FILES:
        counts[path.parent] += 1
    found = {
        str(folder.relative_to(ROOT)): count
        for folder, count in counts.items()
        if count > MAY_BE_LARGER.get(folder, MOST_FILES + 1)  # the `__init__` is the room's sign, not a file in it
    }
    assert found == {}


def test_no_class_name_stands_in_two_rooms() -> None:
    rooms: dict[str, set[Path]] = defaultdict(set)
    for path, text in ((path, path.read_text()) for path in FILES):
        for node in ast.walk(ast.parse(text)) if "class " in text else ():
            if isinstance(node, ast.ClassDef):
                rooms[node.name].add(room_of(path))
    found = {
        name: sorted(str(room.relative_to(ROOT)) for room in where) for name, where in rooms.items() if len(where) > 1
    }
    assert found == {}
