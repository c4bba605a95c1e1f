"""docs/install.md: its commands and targets exist, and its statements about versions and files are true."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import yaml

from dra_driver.tools.commands import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "install.md").read_text()


def test_the_page_begins_with_how_to_get_the_command() -> None:
    headings = re.findall(r"^## (.+)$", PAGE, re.MULTILINE)
    assert headings[:3] == ["The command", "What a node needs", "Image and chart"]


def test_every_make_target_and_command_of_the_page_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:^    |`)make ([a-z-]+)", PAGE, re.MULTILINE)) <= targets
    named = set(
        re.findall(r"(?:dra-driver|kubectl dra) ([a-z][a-z-]+)\b(?! -n)", re.sub(r"helm \S+ dra-driver", "", PAGE))
    )
    assert {"completion", "slices", "check-config"} <= named & COMMANDS.keys()


def test_no_version_is_written_out_where_the_package_has_it() -> None:
    assert not re.findall(r"dra-driver:\d+\.\d+", PAGE)
    made = re.findall(r"^    (\S+?)  +\S", (ROOT / "deploy" / "dist.py").read_text(), re.MULTILINE)
    assert len(made) > 3
    for name in made:
        assert f"`{name}`" in PAGE, name


def test_the_dry_run_of_a_release_names_the_script_that_makes_it() -> None:
    printed = subprocess.run(["make", "-n", "dist"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "deploy/dist.py" in printed


def test_make_installs_no_source_distributions_whose_code_would_run_then(tmp_path: Path) -> None:
    words = ["make", "-n", f"VENV={tmp_path}/venv", "PYTHON=python3", "test-browser"]
    printed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    locked = [line for line in printed.splitlines() if "pip install" in line and ".lock" in line]
    assert len(locked) == 3
    assert all("--require-hashes" in line and "--only-binary=:all:" in line for line in locked)


def test_the_taints_of_the_page_are_those_of_the_chart() -> None:
    values = yaml.safe_load((ROOT / "deploy/helm/values.yaml").read_text())
    assert ("tolerate every taint" in PAGE) is (values["agent"]["tolerations"] == [{"operator": "Exists"}])
