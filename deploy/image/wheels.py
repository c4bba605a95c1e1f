"""The wheels of one architecture, as requirements.lock pins them, unpacked by pip; no code of a wheel runs.

In: pyproject.toml, requirements.lock, an architecture. Out: a folder of packages, and what is in it.
"""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

from contents import ASYNC, Architecture
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).resolve().parents[2]
_PYTHON = "3.11"  # Debian 12's
# What the license files say of distributions whose metadata name none.
_IN_WORDS = {"cel-python": "Apache-2.0"}
_LONGEST_NAME = 100  # characters of a license's name; what is longer is its text
_GLIBC = range(36, 16, -1)  # 2.36 is Debian 12's; manylinux_2_17 is the oldest tag in use (PEP 600)


@dataclass(frozen=True, slots=True)
class Wheel:
    """One installed distribution; `license` is an SPDX expression if `has_expression`, otherwise its name."""

    name: str
    version: str
    license: str = ""
    has_expression: bool = False


def _wheel(installed: importlib.metadata.Distribution) -> Wheel:
    """Return a distribution with the license that its metadata name. Source: core metadata 2.4 (PEP 639)."""
    facts = installed.metadata
    expression = facts.get("License-Expression", "")
    named = [text.rpartition(" :: ")[2] for text in facts.get_all("Classifier", []) if text.startswith("License :: ")]
    text = facts.get("License", "").strip()
    short = text if text and len(text) < _LONGEST_NAME and "\n" not in text else ""
    said = expression or short or ", ".join(named) or _IN_WORDS.get(facts["Name"], "")
    return Wheel(facts["Name"], installed.version, said, bool(expression))


def install(architecture: Architecture, target: Path, scratch: Path) -> list[Wheel]:
    """Install what the package needs on an architecture into a folder; return it by name."""
    lock = scratch / f"wheels-{architecture.name}.lock"
    lock.write_text("\n".join(locked_blocks(needed(architecture))) + "\n")
    tags = [f"manylinux_2_{minor}_{architecture.machine}" for minor in _GLIBC]
    tags += [f"manylinux2014_{architecture.machine}", "any"]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--require-hashes", "--only-binary=:all:", "--no-compile", "--target", str(target), "-r", str(lock)]
    command += ["--implementation", "cp", "--python-version", _PYTHON, "--abi", "cp311", "--abi", "abi3"]
    command += ["--abi", "none", *(word for tag in tags for word in ("--platform", tag))]
    subprocess.run(command, check=True)
    found = importlib.metadata.distributions(path=[str(target)])
    return sorted(map(_wheel, found), key=lambda wheel: wheel.name.lower())


def needed(architecture: Architecture) -> set[str]:
    """Return the name of every distribution that the package needs on Linux, itself excluded."""
    environment = {"extra": "", "sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}
    environment |= {"platform_machine": architecture.machine, "python_version": _PYTHON}
    found: set[str] = set()
    # The package's own requirements come from this checkout, because an editable install may be older.
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    texts = list(project["dependencies"])
    while texts:
        requirement = Requirement(texts.pop())
        name = canonicalize_name(requirement.name)
        if name in found | ASYNC or (requirement.marker and not requirement.marker.evaluate(environment)):
            continue
        found.add(name)
        texts += importlib.metadata.requires(name) or ()
    return found


def locked_blocks(names: set[str]) -> list[str]:
    """Return the entries of requirements.lock for some distributions, hashes included."""
    blocks = re.split(r"\n(?=\S)", (REPOSITORY / "requirements.lock").read_text())
    return [block for block in blocks if canonicalize_name(re.split(r"[=\s;\[]", block, maxsplit=1)[0]) in names]


def locked_versions(names: set[str]) -> list[Wheel]:
    """Return what requirements.lock pins for some distributions, with the licenses of those that are installed here."""
    pinned = (re.split(r"[\s;\\]", block, maxsplit=1)[0].split("==") for block in locked_blocks(names))
    return [replace(_wheel(importlib.metadata.distribution(name)), version=version) for name, version in pinned]
