"""Pages that show commands show their exact output, at 80 columns."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from dra_driver.tools.main import run

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
AUTOSCALERS = (ROOT / "docs" / "autoscalers.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```console\n\$ dra-driver (.*?)\n(.*?)```", PAGE + AUTOSCALERS, re.DOTALL)


@pytest.mark.parametrize(("line", "shown"), BLOCKS, ids=[line.split()[0] for line, _ in BLOCKS])
def test_a_command_of_the_page_prints_what_is_shown(line, shown, monkeypatch, capsys):
    for name in ("KUBECONFIG", "HARDWARE", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(ROOT)
    run(shlex.split(line))
    printed = [row.rstrip() for row in capsys.readouterr().out.strip("\n").splitlines()]
    assert printed == shown.splitlines()
    assert all(len(row) <= 80 for row in printed)


def test_the_pages_show_the_main_commands():
    assert {line.split()[0] for line, _ in BLOCKS} >= {
        "slices",
        "devices",
        "simulate",
        "explain",
        "cel",
        "check-config",
    }
