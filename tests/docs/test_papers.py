"""The papers beside the code: what they name exists, and workflows run what a developer runs."""

from __future__ import annotations

import configparser
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
HOST = ROOT / ".github"
DECIDING = {"test", "test-browser", "test-cluster"}
PAPERS = [*sorted(ROOT.glob("*.md")), *sorted(HOST.glob("*.md"))]
YAML = [*sorted(HOST.rglob("*.yml")), ROOT / ".pre-commit-config.yaml", ROOT / "SECURITY-INSIGHTS.yml"]


def targets() -> set[str]:
    """Return the targets that make knows."""
    printed = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {line.split()[0] for line in printed.splitlines()}


def steps_of_workflows() -> list[dict[str, str]]:
    found = [yaml.safe_load(path.read_text()) for path in (HOST / "workflows").glob("*.yml")]
    return [step for workflow in found for job in workflow["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("path", YAML, ids=lambda path: path.name)
def test_the_file_is_yaml_with_one_object(path: Path) -> None:
    assert isinstance(yaml.safe_load(path.read_text()), dict)


def test_the_workflows_run_the_commands_that_decide_here_and_no_others() -> None:
    called = [
        words[words.index("make") + 1]
        for step in steps_of_workflows()
        if "make" in (words := shlex.split(step.get("run", ""))) and "apt-get" not in words
    ]
    assert sorted(called) == sorted(DECIDING)
    assert targets() >= DECIDING
    decisive = (ROOT / ".ci/run").read_text()
    assert all(re.search(rf"make {name}\b", decisive) for name in DECIDING)


def test_the_workflows_may_write_nothing_and_keep_no_token() -> None:
    for path in (HOST / "workflows").glob("*.yml"):
        assert yaml.safe_load(path.read_text())["permissions"] == {"contents": "read"}
    checkouts = [step for step in steps_of_workflows() if step.get("uses", "").startswith("actions/checkout@")]
    assert len(checkouts) == len(DECIDING)
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


def test_every_hook_before_a_commit_runs_a_tool_of_the_environment() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    entries = [shlex.split(hook["entry"]) for repository in config["repos"] for hook in repository["hooks"]]
    assert len(entries) > 3
    for words in entries:
        folder, _, tool = words[0].rpartition("/")
        assert folder == ".venv/bin"
        assert (Path(sys.executable).parent / tool).exists(), tool
        assert all((ROOT / word).exists() for word in words if word.startswith("tests/"))


def test_the_editor_keeps_to_the_length_of_lines_that_is_checked() -> None:
    editor = configparser.ConfigParser()
    editor.read_string("[all]\n" + (ROOT / ".editorconfig").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert editor.getint("*.py", "max_line_length") == project["tool"]["ruff"]["line-length"]


@pytest.mark.parametrize("paper", PAPERS, ids=lambda path: path.name)
def test_links_and_make_targets_of_the_paper_exist(paper: Path) -> None:
    text = paper.read_text()
    for target, anchor in re.findall(r"\]\(([^)#:\s]*)#?([^):\s]*)\)", text):
        page = paper.parent / target if target else paper
        assert page.exists(), target
        headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE) if anchor else []
        made = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert not anchor or anchor in made, f"{target}#{anchor}"
    assert set(re.findall(r"`make ([a-z-]+)", text)) <= targets()


def test_the_facts_for_programs_lead_to_files_that_exist() -> None:
    found = re.findall(r"/blob/main/([\w./-]+)", (ROOT / "SECURITY-INSIGHTS.yml").read_text())
    assert {"SECURITY.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "LICENSE"} <= set(found)
    assert [name for name in found if not (ROOT / name).exists()] == []
