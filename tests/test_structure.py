"""Rules about the structure of the code that import-linter cannot check: sizes, circles of types, names of classes."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from graphlib import TopologicalSorter
from pathlib import Path

import dra_driver

ROOT = Path(dra_driver.__file__).parent
LAYERS_BESIDE = ("benchmarks", "cluster", "deploy")  # each may import those to its right, and `dra_driver`
FILES = [path for path in sorted(ROOT.rglob("*.py")) if "_proto" not in path.parts]
BESIDE = [path for name in ("benchmarks", "deploy", "cluster", "tests") for path in (ROOT.parent / name).rglob("*.py")]
OTHER_LANGUAGES = [path for path in ROOT.rglob("*.js") if path.parent.name != "vendor"] + [
    *(ROOT.parent / "cluster").rglob("*.go")
]
MAX_FILES = 20
MAX_LINES = 450
MAX_FUNCTION_LINES = 35  # without the docstring
MAY_BE_LONGER_FUNCTIONS = {
    "node/daemon/wiring.py: join_parts": 55,  # it makes the agent's parts, one after the other, and lists them
    "node/daemon/options.py: options_of": 40,  # a line for each option
}
MAX_PARAMETERS = 8  # of a constructor that a class writes itself; a dataclass is a value whose fields have names
MAY_TAKE_MORE_PARAMETERS = {  # those that had more when the rule came, and may only lose some
    "ClaimUndo": 10,
    "Planner": 9,
    "Preparer": 10,
    "Repair": 15,
}
MAY_REPEAT_POSSESSIVELY = {
    # Its group matches in one way alone, and an atomic group would need 35 bytes for each match.
    "tools/webhook/handler.py",
}
VENDORS = ROOT / "hardware"


def room_of(path: Path) -> Path:
    """Return the folder that a class belongs to; all vendors are one, because each implements the same port."""
    return VENDORS if path.is_relative_to(VENDORS) else path.parent


def test_no_folder_has_more_files_than_can_be_taken_in_at_once() -> None:
    counts: dict[Path, int] = defaultdict(int)
    for path in [*FILES, *BESIDE, *OTHER_LANGUAGES]:
        counts[path.parent] += 1
    found = {
        str(folder.relative_to(ROOT.parent)): count
        for folder, count in counts.items()
        if count > MAX_FILES + 1  # the `__init__` is not counted
    }
    assert found == {}


def test_no_module_is_longer_than_can_be_read_at_one_sitting() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in FILES}
    assert {name: lines for name, lines in lengths.items() if lines > MAX_LINES} == {}


def lines_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return how many lines a function has without its docstring."""
    docstring = function.body[0] if ast.get_docstring(function) is not None else None
    spared = docstring.end_lineno - docstring.lineno + 1 if docstring is not None and docstring.end_lineno else 0
    return (function.end_lineno or 0) - function.lineno + 1 - spared


def test_no_group_has_a_possessive_quantifier() -> None:
    """Python 3.11.0 to 3.11.4 misses matches of `(?:a|b)*+` (CPython issue 106052); `(?>(?:a|b)*)` means the same."""
    possessive = re.compile(r"(?<!\()\)(?:[*+?]|\{[0-9,]+\})\+")
    found = {
        str(path.relative_to(ROOT))
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and possessive.search(str(node.value))
    }
    assert found == MAY_REPEAT_POSSESSIVELY


def test_no_function_is_longer_than_a_screen() -> None:
    lengths = {
        f"{path.relative_to(ROOT)}: {node.name}": lines_of(node)
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    limits = MAY_BE_LONGER_FUNCTIONS
    assert {name: lines for name, lines in lengths.items() if lines > limits.get(name, MAX_FUNCTION_LINES)} == {}


def parameters_of(function: ast.FunctionDef) -> int:
    """Return how many parameters a method has, without `self`."""
    arguments = function.args
    return len([*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]) - 1


def test_no_constructor_has_more_parameters_than_can_be_kept_in_mind() -> None:
    counts = {
        node.name: parameters_of(method)
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
        for method in node.body
        if isinstance(method, ast.FunctionDef) and method.name == "__init__"
    }
    limits = MAY_TAKE_MORE_PARAMETERS
    assert {name: count for name, count in counts.items() if count > limits.get(name, MAX_PARAMETERS)} == {}


def imports_of(path: Path) -> set[str]:
    """Return the names that a module imports, with those that it imports for its types or inside functions."""
    found = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom) and node.module]
    return {name for node in found for name in (node.module, *(f"{node.module}.{each.name}" for each in node.names))}


def test_nothing_in_a_folder_imports_itself_through_its_neighbours() -> None:
    """Each module and each folder counts as one, on every level, so the graph of every folder has an order."""
    modules = {
        ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__"): path for path in FILES
    }
    folders: dict[tuple[str, ...], TopologicalSorter[str]] = defaultdict(TopologicalSorter)
    for name, path in modules.items():
        for imported in imports_of(path) & modules.keys():
            ours, theirs = name.split("."), imported.split(".")
            depth = next((at for at, (one, other) in enumerate(zip(ours, theirs, strict=False)) if one != other), None)
            if depth is not None:
                folders[tuple(ours[:depth])].add(ours[depth], theirs[depth])
    for graph in folders.values():
        graph.prepare()  # raises CycleError, which names the circle


def test_no_class_name_is_used_in_two_rooms() -> None:
    rooms: dict[str, set[Path]] = defaultdict(set)
    for path, text in ((path, path.read_text()) for path in FILES):
        for node in ast.walk(ast.parse(text)) if "class " in text else ():
            if isinstance(node, ast.ClassDef):
                rooms[node.name].add(room_of(path))
    found = {
        name: sorted(str(room.relative_to(ROOT)) for room in where) for name, where in rooms.items() if len(where) > 1
    }
    assert found == {}


def imported_by(path: Path) -> set[str]:
    """Return the first names of the modules that a file imports, inside functions too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def test_no_folder_beside_the_driver_imports_upwards() -> None:
    found = {}
    for place, layer in enumerate(LAYERS_BESIDE):
        for path in (ROOT.parent / layer).rglob("*.py"):
            if above := imported_by(path) & set(LAYERS_BESIDE[:place]):
                found[str(path.relative_to(ROOT.parent))] = sorted(above)
    assert found == {}
    assert [str(path) for path in FILES if imported_by(path) & set(LAYERS_BESIDE)] == []
