"""The rules of prose that a program can check."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("dra_driver", "cluster", "benchmarks", "tests", "deploy")
FILES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")) if "_proto" not in path.parts]
NOT_FIRST = {"Give", "Say", "Tell", "Note", "Name", "Learn"}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
BODIES = ("body", "orelse", "handlers", "finalbody", "cases")  # of statements that hold statements
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text()


def documented(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the module and every class and function in it; expressions hold none."""
    if isinstance(tree, DOCUMENTED):
        yield tree
    for name in BODIES:
        for node in getattr(tree, name, ()):
            yield from documented(node)


def test_no_docstring_begins_with_a_verb_that_the_style_excludes() -> None:
    found = [
        f"{file.relative_to(ROOT)}: {getattr(node, 'name', 'module')}: {text}"
        for file in FILES
        for node in documented(ast.parse(file.read_text()))
        if (text := ast.get_docstring(node) or "-").split()[0] in NOT_FIRST
    ]
    assert found == []


@pytest.mark.parametrize("word", ["offering", "fault", "taint", "cordon", "claim", "pool", "slice", "ledger", "step"])
def test_the_glossary_explains_the_main_terms(word: str) -> None:
    first_cells = [line.split("|")[1] for line in GLOSSARY.splitlines() if line.startswith("| ")]
    assert any(word in re.split(r"[, ]+", cell.strip()) for cell in first_cells), word
