"""The steps of a release: what they change, in a repository of their own; and the files that know every release."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from dra_driver import __version__
from dra_driver.base.flags import VENDORS
from dra_driver.node.ledger.record import STEP_KINDS
from dra_driver.tools.doctor.version_checks import RELEASES as KNOWN
from dra_driver.tools.doctor.version_checks import older_release

ROOT = Path(__file__).resolve().parents[2]
ROWS = yaml.safe_load((ROOT / "docs/releases.yaml").read_text())
NEXT = "9.0.0"


def git(repository: Path, *words: str) -> str:
    identity = ["-c", "user.name=releaser", "-c", "user.email=releaser@example.com"]
    done = subprocess.run(["git", *identity, *words], cwd=repository, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def step(repository: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "deploy/release.py", *words]
    return subprocess.run(command, cwd=repository, check=False, capture_output=True, text=True, timeout=120)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with what a release changes, in which the releases so far are its first commit."""
    unwanted = shutil.ignore_patterns("__pycache__")
    for folder in ("dra_driver", "deploy", "tests/deploy/golden"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=unwanted)
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text(f"dra-driver {__version__} demo: …\n")
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## Unreleased\n### Added\n- A thing.\n\n## {__version__}\n")
    (tmp_path / ".gitignore").write_text("__pycache__/\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "config", "user.name", "releaser")
    git(tmp_path, "config", "user.email", "releaser@example.com")
    (tmp_path / "docs/releases.yaml").write_text("")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "before")
    first = git(tmp_path, "rev-parse", "HEAD")
    row = f"- version: {__version__}\n  date: 2026-11-24\n  commit: {first}\n"
    (tmp_path / "docs/releases.yaml").write_text(row)
    git(tmp_path, "commit", "--quiet", "--all", "--message", "rows")
    return tmp_path


def test_a_release_changes_every_version_and_the_next_commit_names_the_one_that_was_tagged(
    repository: Path, helm: str
) -> None:
    done = step(repository, "prepare", NEXT, "--helm", helm)
    assert done.returncode == 0, done.stderr
    assert f'__version__ = "{NEXT}"' in (repository / "dra_driver/__init__.py").read_text()
    chart = yaml.safe_load((repository / "deploy/helm/Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (NEXT, NEXT)
    headings = re.findall(r"^## .+$", (repository / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "## Unreleased"
    assert re.fullmatch(rf"## {NEXT} \(20\d\d-\d\d-\d\d\)", headings[1])
    stale = [
        path.name
        for folder in ("deploy/manifests", "deploy/rules", "tests/deploy/golden")
        for path in (repository / folder).rglob("*.yaml")
        if f'"{__version__}"' in path.read_text()
    ]
    assert stale == []
    known = yaml.safe_load((repository / KNOWN.relative_to(ROOT)).read_text())[-1]
    assert (known["version"], set(known["steps"])) == (NEXT, set(STEP_KINDS))
    assert known["drivers"] == [vendor.driver for vendor in VENDORS]

    assert "not committed" in step(repository, "tag").stderr
    git(repository, "commit", "--quiet", "--all", "--message", NEXT)
    released = git(repository, "rev-parse", "HEAD")
    assert step(repository, "tag").returncode == 0
    assert yaml.safe_load((repository / "docs/releases.yaml").read_text())[-1]["commit"] == released
    assert git(repository, "cat-file", "-t", f"v{NEXT}") == "tag"
    assert git(repository, "rev-parse", f"v{NEXT}^{{commit}}") == released
    assert git(repository, "tag", "--list").split() == sorted([f"v{__version__}", f"v{NEXT}"])


@pytest.mark.parametrize(
    ("version", "reason"), [("0.0.1", "no version after"), ("1.0", "no version after"), ("9.0.0", "with helm 3")]
)
def test_a_release_that_can_not_be_made_changes_nothing(repository: Path, version: str, reason: str) -> None:
    done = step(repository, "prepare", version, "--helm", "")
    assert done.returncode != 0
    assert reason in done.stderr
    assert git(repository, "status", "--porcelain") == ""


def test_the_doctor_knows_every_release() -> None:
    known = [row["version"] for row in yaml.safe_load(KNOWN.read_text())]
    assert known == [row["version"] for row in ROWS]
    assert known[-1] == __version__
    for version in known:
        assert older_release(f"v{version}").name == version


def test_what_the_newest_release_is_said_to_serve_and_undo_is_what_the_code_serves_and_undoes() -> None:
    newest = older_release(__version__)
    assert newest.drivers == {vendor.driver for vendor in VENDORS}
    assert newest.step_kinds == STEP_KINDS


def test_the_changelog_has_a_section_for_each_release_with_its_date() -> None:
    sections = re.findall(r"^## ([0-9.]+) \((.+)\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert sections == [(row["version"], str(row["date"])) for row in reversed(ROWS)]


def test_each_commit_of_a_release_has_its_version_and_only_the_newest_may_lack_one() -> None:
    assert all(re.fullmatch(r"[0-9a-f]{40}", row["commit"]) for row in ROWS[:-1])
    for row in (row for row in ROWS if row["commit"]):
        words = ["git", "show", f"{row['commit']}:dra_driver/__init__.py"]
        done = subprocess.run(words, cwd=ROOT, check=False, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"the history of this clone does not reach back to {row['version']}")
        assert f"__version__ = {json.dumps(row['version'])}" in done.stdout
