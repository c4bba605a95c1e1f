"""An older release of the driver, taken from this repository's own history: for upgrades and downgrades.

In: a commit. Out: a folder with that commit's program, and how an agent of it is started. Nothing is checked out in the
repository itself.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.cluster import REPOSITORY

RELEASES = {"0.1.1": "8cfd918aa92f8b57bf100fb424f96d4946b24c0f"}


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
    command = ["git", "-C", str(REPOSITORY), "archive", "--format=tar", RELEASES[release], "dra_driver"]
    done = subprocess.run(command, check=False, capture_output=True)
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip()
        raise NoHistoryError(f"no commit of release {release} in this clone: {reason}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # the first releases of 3.11 have none
        archive.extractall(folder)
    return OlderVersion(folder)
