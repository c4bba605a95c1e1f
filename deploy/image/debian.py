"""Debian's packages of one architecture, by apt, into a folder; no package is installed and no script of one runs.

In: an architecture and its lock (name, version, SHA-256). Out: the .deb files. apt works on lists of its own below the
build folder, so that the machine's architecture and suite do not matter; its mirrors are those of the machine's apt.
apt checks Debian's signatures, and every file is checked by its hash.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from contents import PACKAGES, SUITE, Architecture

HERE = Path(__file__).resolve().parent
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


@dataclass(frozen=True, slots=True)
class Deb:
    """One package file."""

    name: str
    version: str
    sha256: str
    file: Path


def mirrors() -> dict[str, str]:
    """Return the mirrors of "debian" and "debian-security" that this machine's apt is configured with.

    Source: apt-get(8), indextargets.
    """
    command = ["apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    found = {site.rstrip("/").rpartition("/")[2]: site for site in listed}
    if missing := {"debian", "debian-security"} - found.keys():
        sys.exit(f"apt's sources name no mirror of {' and '.join(sorted(missing))}: add one to /etc/apt/sources.list.d")
    return found


class Packages:
    """The packages of one architecture."""

    def __init__(self, architecture: Architecture, folder: Path) -> None:
        self.architecture = architecture
        self.lock = HERE / f"debian-{architecture.name}.lock"
        self._folder, self._apt = folder / "debs", folder / "apt"
        self._has_lists = False

    def fetch(self, *, relock: bool = False) -> list[Deb]:
        """Download what the lock names, or with `relock` Debian's newest, which the lock then names."""
        self._folder.mkdir(parents=True, exist_ok=True)
        locked = {} if relock else self._locked()
        found = [self._one(name, *locked.get(name, ("", ""))) for name in PACKAGES]
        if relock:
            self.lock.write_text("".join(f"{deb.name} {deb.version} {deb.sha256}\n" for deb in found))
        return found

    def _locked(self) -> dict[str, tuple[str, str]]:
        rows = (line.split() for line in self.lock.read_text().splitlines())
        return {name: (version, digest) for name, version, digest in rows}

    def _one(self, name: str, version: str, sha256: str) -> Deb:
        for file in sorted(self._folder.glob(f"{name}_*.deb")) if sha256 else ():
            if hashlib.sha256(file.read_bytes()).hexdigest() == sha256:
                return Deb(name, version, sha256, file)
        for old in self._folder.glob(f"{name}_*.deb"):
            old.unlink()
        self._download(f"{name}={version}" if version else name)
        (file,) = self._folder.glob(f"{name}_*.deb")
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        if sha256 and digest != sha256:
            sys.exit(f"{file}: sha256 {digest}, but {self.lock.name} says {sha256}")
        said = subprocess.run(["dpkg-deb", "-f", file, "Version"], check=True, capture_output=True, text=True)
        return Deb(name, said.stdout.strip(), digest, file)

    def _download(self, what: str) -> None:
        if not self._has_lists:
            self._run_apt("update")
            self._has_lists = True
        self._run_apt("download", what)

    def _run_apt(self, *words: str) -> None:
        options = self._options()
        command = ["apt-get", "-qq", *(word for option in options for word in ("-o", option)), *words]
        done = subprocess.run(command, cwd=self._folder, check=False, capture_output=True, text=True)
        if done.returncode:
            sys.exit(
                f"apt-get {' '.join(words)} for {self.architecture.name} failed:\n{done.stderr.strip()}\n"
                f"A version that Debian has replaced by a newer one is gone: --relock takes today's packages."
            )

    def _options(self) -> list[str]:
        """Return apt's options for folders and sources of its own. Source: apt.conf(5)."""
        for folder in ("lists/partial", "cache/archives/partial"):
            (self._apt / folder).mkdir(parents=True, exist_ok=True)
        (self._apt / "status").touch()
        suites = (("debian", SUITE), ("debian", f"{SUITE}-updates"), ("debian-security", f"{SUITE}-security"))
        found = mirrors()
        lines = [f"deb [signed-by={KEYRING}] {found[place]} {suite} main\n" for place, suite in suites]
        (self._apt / "sources.list").write_text("".join(lines))
        return [
            f"APT::Architecture={self.architecture.name}",
            f"APT::Architectures={self.architecture.name}",
            f"Dir::State={self._apt}",
            f"Dir::State::Lists={self._apt / 'lists'}",
            f"Dir::State::status={self._apt / 'status'}",
            f"Dir::Cache={self._apt / 'cache'}",
            f"Dir::Etc::SourceList={self._apt / 'sources.list'}",
            "Dir::Etc::SourceParts=/dev/null",
            "Acquire::Languages=none",
            "APT::Sandbox::User=root",  # the folder belongs to the caller, and apt's own user may not write there
        ]
