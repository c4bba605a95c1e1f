"""An older release of the driver, taken from this repository's own history: for upgrades and downgrades.

In: a version of docs/releases.yaml. Out: a folder with the program of its commit, and how an agent of it is started.
Nothing is checked out in the repository itself.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cluster.cluster import REPOSITORY

RELEASES = REPOSITORY / "docs" / "releases.yaml"


class NoHistoryError(Exception):
    """The repository does not have the commit, as in a shallow clone."""


@dataclass(frozen=True, slots=True)
class OlderVersion:
    """A release that lies in `folder`."""

    folder: Path

    def options(self) -> dict[str, Any]:
        """Return the options of `Agent` that start this release instead of the tree's own."""
        # -P: without it Python would look into the working directory first, where this tree is.
        return {
            "program": [sys.executable, "-P", "-m", "dra_driver"],
            "environment": {"PYTHONPATH": str(self.folder)},
        }


def take_out(release: str, folder: Path) -> OlderVersion:
    """Return a release, written into `folder`.

    Raises:
        NoHistoryError: The repository does not have the release's commit.
    """
    commits = {row["version"]: row["commit"] for row in yaml.safe_load(RELEASES.read_text())}
    command = ["git", "-C", str(REPOSITORY), "archive", "--format=tar", commits[release], "dra_driver"]
    done = subprocess.run(command, check=False, capture_output=True)
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip()
        raise NoHistoryError(f"no commit of release {release} in this clone: {reason}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # the first releases of 3.11 have none
        archive.extractall(folder)
    return OlderVersion(folder)
