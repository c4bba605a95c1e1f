"""Where a build comes from: the commit of this checkout, its time, and the address of the repository, if one is known.

In: git's own record of the checkout. Out: labels of the image, and facts for the provenance. A checkout without git (an
unpacked archive) has neither commit nor time; the address is what whoever builds says it is.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a build comes from.

    `revision` is a commit, with "-dirty" after it if files differ from it; `created` is the commit's time (RFC 3339),
    so that the same commit gives the same bytes; `source` is the address of the repository. Each is "" if not known.
    """

    revision: str = ""
    created: str = ""
    source: str = ""

    def labels(self) -> dict[str, str]:
        """Return the labels of an image that are known. Source: OCI image format 1.1, annotations."""
        named = {"revision": self.revision, "created": self.created, "source": self.source}
        return {name: text for name, text in named.items() if text}


def origin(source: str = "", repository: Path = REPOSITORY) -> Origin:
    """Return where a checkout comes from."""
    revision = _git(repository, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    return Origin(revision, _git(repository, "log", "-1", "--format=%cI"), source)


def _git(repository: Path, *words: str) -> str:
    """Return what git says, or "" if it says nothing about this folder."""
    if not (repository / ".git").exists():
        return ""
    done = subprocess.run(["git", *words], cwd=repository, check=False, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""
