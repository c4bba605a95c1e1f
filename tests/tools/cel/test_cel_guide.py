"""docs/selectors.md: every command prints what the page shows, every lint rule has its section."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from dra_driver.__main__ import main
from dra_driver.selectors.advice.findings import RULES

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "selectors.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```console\n\$ (.*?)\n(.*?)```", PAGE, re.DOTALL)
FILES = dict(re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", PAGE, re.DOTALL))
PYTHON = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


OPERATORS = frozenset("();<>|&")
LEFT_OUT = ("FORCE_COLOR", "HARDWARE")
SET = {"COLUMNS": "100", "PYTHONUTF8": "1"}


def words_of(line):
    """Return the words of a line, an operator of the shell as a word of its own."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    return list(lexer)


def in_shell(line):
    """Return what a line prints in a shell, in which the command is a function."""
    function = f'dra-driver() {{ "{sys.executable}" -m dra_driver "$@"; }}'
    done = subprocess.run(
        ["bash", "-c", f"{function}\n{line}"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
        timeout=120,
        check=False,
    )
    return done.stdout, done.stderr


@pytest.mark.parametrize(("line", "shown"), BLOCKS, ids=range(len(BLOCKS)))
def test_a_command_of_the_page_prints_what_is_shown(line, shown, tmp_path, monkeypatch, capsys):
    for name in ("examples", "deviceclasses"):
        (tmp_path / name).symlink_to(ROOT / name)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    for name in LEFT_OUT:
        monkeypatch.delenv(name, raising=False)
    for name, value in SET.items():
        monkeypatch.setenv(name, value)
    words = words_of(line)
    if any(OPERATORS.issuperset(word) for word in words):
        output, errors = in_shell(line)
    else:  # in this process, which has imported the commands already
        monkeypatch.setattr(sys, "argv", words)
        main()
        output, errors = capsys.readouterr()
    assert errors == ""
    assert [row.rstrip() for row in output.splitlines()] == shown.splitlines()


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
