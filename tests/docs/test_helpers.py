"""Helpers of tests are in tests/ROOM/support if one room uses them, and in tests/support if several do."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
PYTHON = [path for folder in ("tests", "cluster", "benchmarks") for path in sorted((ROOT / folder).rglob("*.py"))]


@cache
def imported(path: Path) -> set[str]:
    """Return the modules below `tests` that a file imports."""
    names: set[str] = set()
    text = path.read_text()
    for node in ast.walk(ast.parse(text)) if "tests" in text else ():
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests."):
            names |= {node.module or "", *(f"{node.module}.{one.name}" for one in node.names)}
        if isinstance(node, ast.Import):
            names |= {one.name for one in node.names if one.name.startswith("tests.")}
    return names


def room_of(path: Path) -> str:
    """Return the folder whose tests a file belongs to, "" for tests/support; cluster and benchmarks are rooms too."""
    folders = path.relative_to(ROOT).parts[:-1]
    if folders[0] != "tests":
        return folders[0]
    return "/".join(folders[1 : folders.index("support")] if "support" in folders else folders[1:])


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


HELPERS = [path for path in PYTHON if "support" in path.relative_to(ROOT).parts]


def rooms_that_use(helper: Path) -> set[str]:
    """Return the rooms whose files import a helper, also through other helpers in tests/support."""
    name, rooms = module_of(helper), set()
    for path in PYTHON:
        if path != helper and name in imported(path):
            rooms |= rooms_that_use(path) if not room_of(path) else {room_of(path)}
    return rooms


def fault_of(helper: Path) -> str:
    """Return where a helper belongs instead, or "" if it is in the right folder."""
    rooms = rooms_that_use(helper)
    if home := room_of(helper):
        others = {room for room in rooms if room != home and not room.startswith(f"{home}/")}
        return f"others use it: it belongs to tests/support: {others}" if others else ""
    if helper.parent.name == "fake_nvml" and helper.name != "__init__.py":
        return ""
    if helper.name == "faulty_daemon.py":  # imported by the program that fake_mps.py writes
        return ""
    several = len({tuple(room.split("/")[:2]) for room in rooms}) > 1
    return "" if several else f"one room uses it: it belongs to tests/{rooms}/support"


def test_helpers_are_in_the_folder_of_their_users():
    faults = {str(helper.relative_to(TESTS)): fault_of(helper) for helper in HELPERS}
    assert {name: fault for name, fault in faults.items() if fault} == {}


def test_there_are_no_modules_beside_tests_and_helpers():
    others = [
        path.relative_to(ROOT)
        for path in PYTHON
        if path.is_relative_to(TESTS)
        and "support" not in path.relative_to(TESTS).parts
        and not path.name.startswith("test_")
        and path.name != "conftest.py"
    ]
    assert others == []


def test_no_module_imports_a_test():
    others = {module_of(path): path for path in PYTHON if path.name.startswith("test_")}
    found = {
        module_of(path): sorted(imported(path) & others.keys()) for path in PYTHON if imported(path) & others.keys()
    }
    assert found == {}
