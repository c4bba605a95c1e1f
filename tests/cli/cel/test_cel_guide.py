"""docs/selectors.md: every command prints what the page shows, every lint rule has its section."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dra_driver.selectors.lint.findings import RULES

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "selectors.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```console\n\$ (.*?)\n(.*?)```", PAGE, re.DOTALL)
FILES = dict(re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", PAGE, re.DOTALL))
PYTHON = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def shell(line, folder):
    """Run a line of the page in a folder that has what the page names."""
    for name in ("examples", "deviceclasses"):
        (folder / name).symlink_to(ROOT / name)
    for name, text in FILES.items():
        (folder / name).write_text(text)
    function = f'dra-driver() {{ "{sys.executable}" -m dra_driver "$@"; }}'
    inherited = {k: v for k, v in os.environ.items() if k not in {"FORCE_COLOR", "HARDWARE"}}
    done = subprocess.run(
        ["bash", "-c", f"{function}\n{line}"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env={**inherited, "PYTHONPATH": str(ROOT), "COLUMNS": "100", "PYTHONUTF8": "1"},
        cwd=folder,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stderr == ""
    return [row.rstrip() for row in done.stdout.splitlines()]


@pytest.mark.parametrize(("line", "shown"), BLOCKS, ids=range(len(BLOCKS)))
def test_a_command_of_the_page_prints_what_is_shown(line, shown, tmp_path):
    assert shell(line, tmp_path) == shown.splitlines()


def test_the_page_has_commands_of_every_kind():
    assert len(BLOCKS) >= 8
    assert {line.split("cel ")[1].split()[0] for line, _ in BLOCKS} == {"test", "explain", "lint", "repl", "batch"}


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_has_its_section(rule):
    assert f"\n### {rule}\n" in PAGE


def test_the_python_example_runs(capsys):
    for text in PYTHON:
        exec(compile(text, "docs/selectors.md", "exec"), {})
    assert capsys.readouterr().out == "bool 5 True\nTrue\n"
