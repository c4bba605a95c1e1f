"""The README's commands do what it shows. Not covered: figures of the table (make bench)."""

import os
import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def block(first_line):
    """Give the console block that begins with a command."""
    found = re.search(rf"```console\n\$ {re.escape(first_line)}\n(.*?)```", README.read_text(), re.DOTALL)
    assert found, f"no block for {first_line}"
    return found[1].splitlines()


def plain(line):
    """Take out what differs from run to run, and the table's ruling."""
    return re.sub(r"\d+ ms|[\d.]+ s\b|process \d+, \d+ MiB", "#", re.sub(r"\s+", " ", line)).strip()


def test_the_demo_prints_what_the_first_screen_shows():
    done = subprocess.run(
        [sys.executable, "-m", "dra_driver", "demo"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "COLUMNS": "140"},
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    printed = {plain(line) for line in done.stdout.splitlines()}
    shown = [plain(line) for line in block("make demo") if line not in {"...", ""}]
    assert len(shown) > 15
    assert [line for line in shown if line not in printed] == []


def test_links_of_the_readme_lead_somewhere():
    targets = re.findall(r"\]\(([^)#]+)\)", README.read_text())
    assert targets
    assert [t for t in targets if not (README.parent / t).exists()] == []


def test_the_agent_explains_its_flags():
    done = subprocess.run(
        [sys.executable, "-m", "dra_driver", "agent", "--help"], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0
    assert "NODE_NAME" in done.stdout
