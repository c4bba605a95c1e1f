"""The table of what has been shown: each cell names a test of its column, and no GPU is claimed that was not there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "shown.md"
COLUMNS = ("embedded", "fake NVIDIA library", "real Kubernetes", "recorded", "real GPU")
NOT_IN_A_CLONE = re.compile(r"SHARED|FACTS\.is_file|FILES\[0\]|\bbuilt\(|unpacked")
NOT_SHOWN = "\u2013"
LIBRARY = re.compile(r"fake_nvml|fake_cuda|nvml_machine|fake_driver|tests\.hardware|NVML", re.IGNORECASE)


def rows() -> dict[str, dict[str, str]]:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    start = next(number for number, line in enumerate(lines) if line.startswith("| feature |"))
    assert tuple(cell.strip() for cell in lines[start].strip("|").split("|")[1:]) == COLUMNS
    found = {}
    for line in lines[start + 1 :]:
        feature, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        found[feature] = dict(zip(COLUMNS, cells, strict=True))
    return found


def places(folder: str) -> dict[str, Path]:
    found = {}
    for path in (ROOT / folder).rglob("test_*.py"):
        for name in re.findall(r"^(?:    )?def (test_\w+)\(", path.read_text(), re.MULTILINE):
            found[name] = path
    return found


ROWS, TESTS, SCENARIOS = rows(), places("tests"), places("cluster/scenarios")


@pytest.mark.parametrize("feature", ROWS)
def test_each_cell_names_a_test_of_its_column(feature: str) -> None:
    cells = ROWS[feature]
    assert any(cells[column] not in {NOT_SHOWN, "never"} for column in COLUMNS)
    for column in COLUMNS[:-1]:
        if cells[column] == NOT_SHOWN:
            continue
        name = cells[column].strip("`")
        known = SCENARIOS if column == "real Kubernetes" else TESTS | SCENARIOS if "library" in column else TESTS
        assert name in known, f"{column}: {name}"
        if "library" in column:
            assert LIBRARY.search(known[name].read_text()), f"{known[name]} does not mention the library"
        if column == "embedded":
            assert "fake_nvml" not in known[name].parts


def conditions(path: Path, name: str) -> str:
    """Return the code that decides whether a test is skipped: the test, its decorators and the marks of its file."""
    text = path.read_text()
    parts = [
        node
        for node in ast.walk(ast.parse(text))
        if (isinstance(node, ast.FunctionDef) and node.name == name)
        or (isinstance(node, ast.Assign) and "pytestmark" in ast.unparse(node.targets[0]))
    ]
    return "\n".join(ast.unparse(part) for part in parts)


@pytest.mark.parametrize("feature", ROWS)
def test_what_shows_a_feature_in_make_test_needs_neither_recordings_beside_the_repository_nor_a_built_image(
    feature: str,
) -> None:
    for column in ("embedded", "fake NVIDIA library", "recorded"):
        name = ROWS[feature][column].strip("`")
        if name in TESTS:
            assert not NOT_IN_A_CLONE.search(conditions(TESTS[name], name)), f"{column}: a fresh clone skips {name}"


@pytest.mark.parametrize("feature", ROWS)
def test_a_cell_of_a_real_gpu_has_its_model_and_date_or_is_empty(feature: str) -> None:
    cell = ROWS[feature]["real GPU"]
    assert cell in {NOT_SHOWN, "never"} or re.fullmatch(r"[A-Z0-9].+, 20\d\d-[01]\d-[0-3]\d", cell), cell


def test_page_and_readme_say_whether_anything_was_shown_on_a_real_gpu() -> None:
    is_shown = any(cells["real GPU"] not in {NOT_SHOWN, "never"} for cells in ROWS.values())
    for text in (PAGE.read_text(), (ROOT / "README.md").read_text()):
        assert ("shown on a real GPU yet" in text) is not is_shown
    assert "(docs/shown.md)" in (ROOT / "README.md").read_text()
