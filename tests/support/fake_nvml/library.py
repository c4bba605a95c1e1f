"""Compile the fake library. What is built once is kept beside the tests' temporary files and copied from there."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

SONAME, OBJECT = "libnvidia-ml.so.1", "nvml.o"
SOURCE = Path(__file__).with_name("nvml.c")
HEADERS = tuple(Path(__file__).with_name(name) for name in ("state.h", "changes.h", "mig.h", "health.h", "metering.h"))
FLAGS = ("-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-fPIC", "-fvisibility=hidden")


def build(folder: Path, *, without: Iterable[str] = ()) -> Path:
    """Return `folder`/libnvidia-ml.so.1; `without` names functions that an older driver's library lacks.

    Skips the calling test where there is no C compiler. Raises: ValueError for functions that no fake library has.
    """
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler: the fake libnvidia-ml.so.1 can't be built")
    missing = sorted(without)
    if unknown := [name for name in missing if name not in _functions(_linked(compiler, []))]:
        raise ValueError(f"the fake {SONAME} has no function {', '.join(unknown)}: it can't be left out")
    library = _linked(compiler, missing)
    folder.mkdir(parents=True, exist_ok=True)
    target, temporary = folder / SONAME, folder / f"{SONAME}.new"
    shutil.copyfile(library, temporary)
    temporary.replace(target)  # a library that is in use must not be written over
    return target


def _linked(compiler: str, missing: list[str]) -> Path:
    """Return the library without the functions that are missing, which is made where there is none yet."""
    source = b"".join(path.read_bytes() for path in (SOURCE, *HEADERS))
    library = _kept([*FLAGS, source, *missing], SONAME)
    if not library.exists():
        code = _kept([*FLAGS, source], OBJECT)
        if not code.exists():
            _compile(compiler, code)
        _link(compiler, code, library, missing)
    return library


@cache
def _functions(library: Path) -> frozenset[str]:
    """Return the names of the functions that a library offers."""
    command = ["nm", "-D", "--defined-only", str(library)]
    symbols = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=120).stdout
    return frozenset(line.split()[-1] for line in symbols.splitlines())


def _kept(made_from: Iterable[str | bytes], name: str) -> Path:
    """Return where the file that is made from these is kept for the tests to come."""
    parts = [part.encode() if isinstance(part, str) else part for part in made_from]
    key = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
    folder = Path(tempfile.gettempdir(), f"fake-nvml-{os.getuid()}", key)
    folder.mkdir(parents=True, exist_ok=True)
    return folder / name


def _compile(compiler: str, target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        made = Path(work, OBJECT)
        subprocess.run([compiler, *FLAGS, "-c", "-o", str(made), str(SOURCE)], check=True, timeout=120)
        made.replace(target)


def _link(compiler: str, code: Path, target: Path, missing: list[str]) -> None:
    """Link the library without the functions that are missing. Compiling takes ten times as long, and is done once."""
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        made = Path(work, SONAME)
        options = ["-shared", f"-Wl,-soname,{SONAME}"]
        if missing:
            script = Path(work, "exports.map")
            script.write_text("{ local: %s };\n" % " ".join(f"{name};" for name in missing))  # noqa: UP031
            options.append(f"-Wl,--version-script={script}")
        subprocess.run([compiler, *options, "-o", str(made), str(code), "-lpthread"], check=True, timeout=120)
        made.replace(target)


def environment(library: Path, state: Path, *, proc: Path | None = None) -> dict[str, str]:
    """Return the environment variables with which another process uses the library.

    `proc` is where MIG instances are shown as the kernel module shows them, if anywhere.
    """
    shown = {"FAKE_NVML_PROC": str(proc)} if proc else {}
    return {"LD_LIBRARY_PATH": str(library.parent), "FAKE_NVML_STATE": str(state), **shown}
