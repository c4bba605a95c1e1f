"""The laws of prose that a program can check."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("dra_driver", "lane", "benchmarks", "tests", "deploy")
FILES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")) if "_proto" not in path.parts]
NOT_FIRST = {"Give", "Say", "Tell", "Note", "Name", "Learn"}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text()


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_a_docstring_says_what_is_returned_or_done(file: Path) -> None:
    nodes = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, DOCUMENTED)]
    first = {(ast.get_docstring(node) or "-").split()[0]: getattr(node, "name", "module") for node in nodes}
    assert not NOT_FIRST & set(first), first


@pytest.mark.parametrize("word", ["offering", "fault", "taint", "cordon", "claim", "pool", "slice", "ledger", "step"])
def test_the_glossary_explains_the_words_that_the_house_is_built_of(word: str) -> None:
    first_cells = [line.split("|")[1] for line in GLOSSARY.splitlines() if line.startswith("| ")]
    assert any(word in re.split(r"[, ]+", cell.strip()) for cell in first_cells), word
