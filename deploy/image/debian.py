"""Debian's packages of one architecture, by apt, into a folder; no package is installed and no script of one runs.

In: an architecture and its lock (name, version, SHA-256). Out: the .deb files. apt works on lists of its own below the
build folder, so that the machine's architecture and suite do not matter; its mirrors are those of the machine's apt.
apt checks Debian's signatures, and every file is checked by its hash. What dpkg would have recorded about the packages
is written into the tree, so that scanners of images know them, their files and their licenses.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from contents import BASE, BASE_FILES, PACKAGES, SUITE, Architecture

# Packages whose copyright files have no name of a license that a program can find: what their words say.
_IN_WORDS = {
    "libcrypt1": ["LGPL-2.1-or-later"],
    "libpython3.11-minimal": ["PSF-2.0"],
    "libpython3.11-stdlib": ["PSF-2.0"],
    "python3.11-minimal": ["PSF-2.0"],
    "zlib1g": ["Zlib"],
}
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


def locked(architecture: str) -> list[tuple[str, str, str]]:
    """Return name, version and SHA-256 of each package that the lock of an architecture names."""
    rows = (line.split() for line in (HERE / f"debian-{architecture}.lock").read_text().splitlines())
    return [(name, version, digest) for name, version, digest in rows]


def unpack(debs: list[Deb], tree: Path) -> None:
    """Unpack packages into a tree; of the one that is the base of every Debian, only the files that are wanted."""
    for deb in debs:
        subprocess.run(["dpkg-deb", "-x", deb.file, tree], check=True) if deb.name != BASE else _unpack_base(deb, tree)


def _unpack_base(deb: Deb, tree: Path) -> None:
    packed = subprocess.run(["dpkg-deb", "--fsys-tarfile", deb.file], check=True, capture_output=True).stdout
    command = ["tar", "-x", "-C", str(tree), *(f"./{name}" for name in BASE_FILES)]
    subprocess.run(command, check=True, input=packed)


def record(debs: list[Deb], tree: Path) -> None:
    """Write what dpkg has of installed packages: their control data, and the files of each that are in the tree.

    Sources: dpkg(1), /var/lib/dpkg/status and /var/lib/dpkg/info.
    """
    database = tree / "var/lib/dpkg"
    (database / "info").mkdir(parents=True)
    stanzas = []
    for deb in debs:
        control = subprocess.run(["dpkg-deb", "-f", deb.file], check=True, capture_output=True, text=True).stdout
        stanzas.append(control.replace("\n", "\nStatus: install ok installed\n", 1))
        sums = subprocess.run(["dpkg-deb", "--info", deb.file, "md5sums"], check=True, capture_output=True, text=True)
        kept = [line for line in sums.stdout.splitlines() if (tree / line.split(maxsplit=1)[1]).is_file()]
        (database / "info" / f"{deb.name}.md5sums").write_text("".join(f"{line}\n" for line in kept))
    (database / "status").write_text("\n".join(stanzas))


def keep_copyrights(tree: Path) -> None:
    """Remove all documentation but the copyright files, and the links that lead to them."""
    for path in sorted((tree / "usr/share/doc").rglob("*"), reverse=True):
        if path.is_symlink() or path.name == "copyright":
            continue
        path.rmdir() if path.is_dir() and not any(path.iterdir()) else path.is_dir() or path.unlink()


def licenses(tree: Path, name: str) -> list[str]:
    """Return the names of the licenses in a package's copyright file, sorted.

    They are those of its "License:" fields and of the texts in common-licenses to which it refers.
    Source: Debian's machine-readable copyright format, 1.0.
    """
    if name in _IN_WORDS:
        return _IN_WORDS[name]
    text = (tree / "usr/share/doc" / name / "copyright").read_text(errors="replace")
    named = re.findall(r"^License: *(\S.*)$", text, re.MULTILINE)
    named += re.findall(r"/usr/share/common-licenses/([\w.+-]*\w)", text)
    return sorted(set(named))


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
        return {name: (version, digest) for name, version, digest in locked(self.architecture.name)}

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
