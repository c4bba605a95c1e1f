"""Make: what a run of the tests says about those that it skipped, and what `make clean` removes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SKIPPED = """
import pytest

@pytest.mark.parametrize("number", range(3))
def test_with_a_gpu(number):
    pytest.skip("there is no GPU")

@pytest.mark.skipif(True, reason="there is no compiler")
def test_with_a_compiler(): ...
"""


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["one process", "two processes"])
@pytest.mark.parametrize(
    ("more", "first"),
    [("", "nothing ran: 4 tests were skipped"), ("def test_it(): ...", "4 tests were skipped")],
    ids=["all skipped", "some skipped"],
)
def test_a_run_ends_with_the_reasons_why_tests_were_skipped_each_once_with_its_count(more, first, options, tmp_path):
    (tmp_path / "test_machine.py").write_text(SKIPPED + more)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -q\nmarkers = long\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", *options, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    assert lines[-4:-1] == [f"{first}:", "3  there is no GPU", "1  there is no compiler"]


def test_make_clean_removes_everything_that_git_ignores_and_nothing_else(tmp_path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "kept").mkdir()
    ignored = [line.strip("/") for line in (ROOT / ".gitignore").read_text().splitlines()]
    for name in ignored:
        for folder in (tmp_path, tmp_path / "kept") if name == "__pycache__" else (tmp_path,):
            (folder / name.replace("*", "x")).mkdir()
    assert len(ignored) > 7
    subprocess.run(["make", "clean"], cwd=tmp_path, check=True, capture_output=True, timeout=60)
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == ["Makefile", "kept"]
