"""The oracle as a program: built once for each minor version, and asked over pipes.

In: lines. Out: the answers of Kubernetes' own packages, of the version that the module files pin.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cluster.components import compiler, parts

FOLDER = Path(__file__).parent
VERSIONS = parts.VERSIONS
_MEMORY = 4 << 30


class OracleFailed(Exception):
    """The oracle could not be built, or ended before it had answered."""


def module_file(version: str) -> Path:
    """Return the module file of a minor version."""
    return FOLDER / "pins" / f"{version}.mod"


def build(version: str) -> Path:
    """Return the oracle of a minor version, built if it is not there yet.

    Raises:
        OracleFailed: Go could not build it.
    """
    program = parts.cache() / f"oracle-{version}-{_fingerprint(version)}"
    if program.exists():
        return program
    program.parent.mkdir(parents=True, exist_ok=True)
    fresh = program.with_suffix(f".{os.getpid()}")
    command = [compiler.go(), "build", "-p", "1", "-trimpath", "-buildvcs=false", f"-modfile={module_file(version)}"]
    environment = os.environ | {"CGO_ENABLED": "0", "GOWORK": "off"}
    done = subprocess.run(
        [*command, "-o", fresh, "."], cwd=FOLDER, env=environment, check=False, capture_output=True, text=True
    )
    if done.returncode:
        raise OracleFailed(f"go build of the oracle for {version}: {done.stderr}")
    fresh.rename(program)
    return program


def _fingerprint(version: str) -> str:
    files = [module_file(version), module_file(version).with_suffix(".sum"), *sorted(FOLDER.glob("*.go"))]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def ask(version: str, command: str, header: Any, lines: list[Any]) -> Iterator[Any]:
    """Yield the answer to each line, in order; `{"crash": reason}` for a line on which Kubernetes' own code crashes.

    Raises:
        OracleFailed: It answers nothing at all.
    """
    texts = [f"{json.dumps(line, ensure_ascii=True)}\n".encode() for line in (header, *lines)]
    done = 0
    while done < len(lines):
        ended = subprocess.run(
            [build(version), command],
            input=b"".join([texts[0], *texts[1 + done :]]),
            check=False,
            capture_output=True,
            preexec_fn=_bound,
        )
        answers = ended.stdout.splitlines()
        yield from map(json.loads, answers)
        done += len(answers)
        if done < len(lines):
            reason = ended.stderr.decode(errors="replace").strip()
            if not reason.startswith(("fatal error", "runtime:", "goroutine")):
                raise OracleFailed(f"{done} of {len(lines)} lines answered: {reason[:2000]}")
            yield {"crash": reason.splitlines()[0]}
            done += 1


def _bound() -> None:
    """Limit the oracle's memory, so that an expression which needs too much ends the oracle and not the machine."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
