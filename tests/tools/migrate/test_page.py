"""docs/migrate.md: every command prints what the page shows, and every code that is reported has a row."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "migrate.md"
BLOCK = re.compile(r"```console\n\$ (.*?)\n(.*?)```", re.DOTALL)
BLOCKS = BLOCK.findall(PAGE.read_text())
FILES = dict(re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", PAGE.read_text(), re.DOTALL))
SOURCE = "\n".join(path.read_text() for path in (ROOT / "dra_driver" / "tools" / "migrate").rglob("*.py"))


def shell(line, folder):
    """Run a line of the page in a folder with the files of the page; return both streams as a terminal shows them."""
    for name, text in FILES.items():
        (folder / name).write_text(text)
    function = f'dra-driver() {{ "{sys.executable}" -m dra_driver "$@"; }}'
    kept = {key: value for key, value in os.environ.items() if key not in {"FORCE_COLOR", "HARDWARE", "KUBECONFIG"}}
    done = subprocess.run(
        ["bash", "-c", f"{function}\n{line}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**kept, "PYTHONPATH": str(ROOT), "COLUMNS": "110", "PYTHONUTF8": "1"},
        cwd=folder,
        text=True,
        timeout=120,
        check=False,
    )
    return "".join(f"{row.rstrip()}\n" for row in done.stdout.splitlines())


@pytest.mark.parametrize(("line", "shown"), BLOCKS, ids=range(len(BLOCKS)))
def test_a_command_of_the_page_prints_what_is_shown(line, shown, tmp_path):
    assert shell(line, tmp_path) == shown


def test_every_loss_has_a_row_and_every_row_is_a_loss():
    section = PAGE.read_text().partition("## What is lost")[2].partition("\n## ")[0]
    rows = set(re.findall(r"^\| `([a-z-]+)` \|", section, re.MULTILINE))
    assert all(f'"{code}"' in SOURCE for code in rows)
    codes = set(re.findall(r'lost\(\s*"([a-z-]+)"', SOURCE)) | set(
        re.findall(r'NotExpressible\([^()]*, "([a-z-]+)"\)', SOURCE)
    )
    assert codes | {"label-kept"} <= rows


def test_every_label_of_the_table_is_on_the_page():
    from dra_driver.tools.migrate.labels import _TABLE

    page = PAGE.read_text()
    for name in _TABLE:
        stem = name.rpartition(".")[0]
        assert name in page or f"{stem}.*" in page or f"`{stem}.major`" in page, name


if __name__ == "__main__":
    import tempfile

    def show(found):
        with tempfile.TemporaryDirectory() as folder:
            return f"```console\n$ {found[1]}\n{shell(found[1], Path(folder))}```"

    PAGE.write_text(BLOCK.sub(show, PAGE.read_text()))
