"""The laws of prose that a program can check."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = [path for path in sorted((ROOT / "dra_driver").rglob("*.py")) if "_proto" not in path.parts]
NOT_FIRST = {"Give", "Say", "Tell", "Note", "Name", "Learn"}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_a_docstring_says_what_is_returned_or_done(file: Path) -> None:
    nodes = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, DOCUMENTED)]
    first = {(ast.get_docstring(node) or "-").split()[0]: getattr(node, "name", "module") for node in nodes}
    assert not NOT_FIRST & set(first), first
