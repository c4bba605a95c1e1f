"""The two steps of a release that change the repository (RELEASE.md): a new version everywhere, and its tag.

    python deploy/release.py prepare 0.3.0 [--helm PROGRAM]
    python deploy/release.py tag

`prepare` gives the package, the chart, what is rendered from it and the README the new version, puts its heading and
date below the changelog's "Unreleased", and adds its row to docs/releases.yaml and to the file that
`doctor --before-downgrade` reads. It removes the recorded renderings of the chart, which the tests record anew. Look
through it and commit it. Then `tag` writes that commit into docs/releases.yaml, which is the next commit, and makes the
annotated tag of every release that has none in this repository.
"""

from __future__ import annotations

import argparse
import datetime
import re
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout, whatever is installed
from dra_driver.base.flags import VENDORS
from dra_driver.node.ledger.record import STEP_KINDS

REPOSITORY = Path(__file__).resolve().parents[1]
RELEASES = REPOSITORY / "docs" / "releases.yaml"
KNOWN = REPOSITORY / "dra_driver" / "tools" / "doctor" / "releases.yaml"
CHANGELOG = REPOSITORY / "CHANGELOG.md"
UNRELEASED = "## Unreleased\n"
GOLDEN = "tests/deploy/golden"
_VERSION = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+")
_NO_COMMIT = '""'


def main() -> int:
    """Take one of the two steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps = parser.add_subparsers(dest="step", required=True)
    preparing = steps.add_parser("prepare", help="give everything a new version")
    preparing.add_argument("version")
    preparing.add_argument("--helm", default=shutil.which("helm") or "", metavar="PROGRAM")
    steps.add_parser("tag", help="record the commit and make the tags")
    options = parser.parse_args()
    if options.step == "prepare":
        prepare(options.version, options.helm, datetime.datetime.now(datetime.UTC).date())
    else:
        tag()
    return 0


def prepare(version: str, helm: str, date: datetime.date) -> None:
    """Write a new version, everywhere; exits if something of it can't be."""
    released = yaml.safe_load(RELEASES.read_text())
    former = current_version()
    if not _VERSION.fullmatch(version) or _order(version) <= _order(former):
        sys.exit(f"{version!r} is no version after {former}: write it as X.Y.Z")
    if not released[-1]["commit"]:
        sys.exit(f"{RELEASES} has no commit for {released[-1]['version']}: run `make release-tag` first")
    if not helm:
        sys.exit("the manifests are rendered with helm 3: put it on PATH, or run `make cluster-binaries`")
    if UNRELEASED not in CHANGELOG.read_text():
        sys.exit(f"{CHANGELOG} has no heading {UNRELEASED.strip()!r}")
    _replace(REPOSITORY / "dra_driver" / "__init__.py", f'"{former}"', f'"{version}"')
    _replace(REPOSITORY / "deploy" / "helm" / "Chart.yaml", former, version)
    _replace(REPOSITORY / "README.md", f"dra-driver {former} demo", f"dra-driver {version} demo")
    _replace(CHANGELOG, UNRELEASED, f"{UNRELEASED}\n## {version} ({date})\n")
    for golden in (REPOSITORY / GOLDEN).glob("*.yaml"):
        golden.unlink()  # names in them follow from the version; the tests record them anew
    _append(RELEASES, f"- version: {version}\n  date: {date}\n  commit: {_NO_COMMIT}\n")
    _append(KNOWN, known_row(version))
    generate = [sys.executable, str(REPOSITORY / "deploy" / "manifests" / "generate.py"), "--helm", helm]
    subprocess.run(generate, check=True)
    print(
        f"{former} is {version} now: write its section of CHANGELOG.md, run the tests, commit, then `make release-tag`"
    )


def tag() -> None:
    """Record the commit of the newest release, if that is this one, and make the tags that are missing."""
    rows = yaml.safe_load(RELEASES.read_text())
    if not rows[-1]["commit"]:
        if _git("status", "--porcelain"):
            sys.exit("there are changes that are not committed: the tag would name a commit without them")
        rows[-1]["commit"] = _git("rev-parse", "HEAD")
        _replace(RELEASES, f"commit: {_NO_COMMIT}", f"commit: {rows[-1]['commit']}")
        print(f"commit {RELEASES.relative_to(REPOSITORY)}, which names the commit of {rows[-1]['version']} now")
    existing = _git("tag", "--list").split()
    for row in rows:
        name = f"v{row['version']}"
        if name not in existing:
            _git("tag", "--annotate", "--message", f"dra-driver {row['version']}, {row['date']}", name, row["commit"])
            print(f"{name} is {row['commit']}")


def current_version() -> str:
    """Return the version of this checkout."""
    text = (REPOSITORY / "dra_driver" / "__init__.py").read_text()
    return str(re.findall(r'^__version__ = "(.+)"$', text, re.MULTILINE)[0])


def known_row(version: str) -> str:
    """Return what the doctor of later releases has to know of this one, as a row of its file."""
    drivers, steps = (", ".join(names) for names in ([vendor.driver for vendor in VENDORS], sorted(STEP_KINDS)))
    return f"- version: {version}\n  drivers: [{drivers}]\n  steps: [{steps}]\n  keeps_health: true\n"


def _order(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _replace(path: Path, former: str, text: str) -> None:
    content = path.read_text()
    if former not in content:
        sys.exit(f"{path} does not have {former!r}")
    path.write_text(content.replace(former, text))


def _append(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text)


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
