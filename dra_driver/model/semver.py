"""Semantic versions 2.0.0, strict, as Kubernetes reads them.

In: the text of a version attribute. Out: an immutable `Semver`, ordered as the specification orders versions. Build
metadata is kept but plays no part in equality or order. Parsing is never lenient: `normalize` is the one place that
repairs a text, and only for callers that ask for it.

Source: semver.org 2.0.0; the blang/semver parser that Kubernetes uses (error texts, 64-bit numbers).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache, total_ordering

from dra_driver.model.errors import InputError

_UINT64_MAX = 2**64 - 1
_INTERNED = 64  # texts up to this length are parsed once and shared
_DIGITS = re.compile(r"[0-9]*")
_ALPHANUMERIC = re.compile(r"[0-9A-Za-z-]*")


class SemverError(InputError):
    """The text is not a semantic version."""

    branch = "input.semver"


@total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class Semver:
    """One version. `prerelease` has numbers and words in order; `build` plays no part in comparisons."""

    major: int
    minor: int
    patch: int
    prerelease: tuple[int | str, ...] = ()
    build: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Semver:
        """Read a strict version: three numeric parts, no leading zeros, no `v`.

        Raises:
            SemverError: The text is not such a version; the message is the one that Kubernetes uses.
        """
        return _parse(text) if len(text) <= _INTERNED else _parse.__wrapped__(text)

    def compare(self, other: Semver) -> int:
        """Return -1, 0 or 1. A pre-release is lower than its release, and numbers are lower than words."""
        if self.major != other.major:
            return 1 if self.major > other.major else -1
        if self.minor != other.minor:
            return 1 if self.minor > other.minor else -1
        if self.patch != other.patch:
            return 1 if self.patch > other.patch else -1
        return _compare_prerelease(self.prerelease, other.prerelease)

    def __eq__(self, other: object) -> bool:
        return self.compare(other) == 0 if isinstance(other, Semver) else NotImplemented

    def __lt__(self, other: Semver) -> bool:
        return self.compare(other) < 0

    def __hash__(self) -> int:
        return hash((self.major, self.minor, self.patch, self.prerelease))

    def __str__(self) -> str:
        text = f"{self.major}.{self.minor}.{self.patch}"
        if self.prerelease:
            text += "-" + ".".join(map(str, self.prerelease))
        return text + ("+" + ".".join(self.build) if self.build else "")


def normalize(text: str) -> str:
    """Repair a lenient version: strip one `v`, strip leading zeros, and add missing parts.

    Raises:
        SemverError: A part is missing where a pre-release or build follows.

    Source: the CEL function semver(text, true) of Kubernetes.
    """
    parts = text.removeprefix("v").split(".", 2)
    for index, part in enumerate(parts):
        if len(part.encode("utf-8", "surrogatepass")) > 1:  # the server counts bytes, not characters
            stripped = part.lstrip("0")
            parts[index] = stripped if stripped and stripped[0].isdigit() else "0" + stripped
    if len(parts) < 3:
        if any(mark in parts[-1] for mark in "+-"):
            raise SemverError("format", "short version cannot contain PreRelease/Build meta data")
        parts += ["0"] * (3 - len(parts))
    return ".".join(parts)


def _compare_prerelease(mine: tuple[int | str, ...], theirs: tuple[int | str, ...]) -> int:
    if not mine or not theirs:
        return (not mine) - (not theirs)
    for left, right in zip(mine, theirs, strict=False):
        if left == right:
            continue
        if isinstance(left, int) and isinstance(right, int):
            return 1 if left > right else -1
        if isinstance(left, str) and isinstance(right, str):
            return 1 if left.encode() > right.encode() else -1
        return 1 if isinstance(left, str) else -1
    return (len(mine) > len(theirs)) - (len(mine) < len(theirs))


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _number(text: str, noun: str) -> int:
    """Read the major, minor or patch number; `noun` is its name in errors."""
    if not _DIGITS.fullmatch(text):
        raise SemverError("format", f"Invalid character(s) found in {noun.lower()} number {_quoted(text)}")
    if len(text) > 1 and text[0] == "0":
        raise SemverError("format", f"{noun} number must not contain leading zeroes {_quoted(text)}")
    return _uint64(text)


def _uint64(text: str) -> int:
    if not text:
        raise SemverError("format", 'strconv.ParseUint: parsing "": invalid syntax')
    if len(text) > 20 or int(text) > _UINT64_MAX:
        raise SemverError("format", f"strconv.ParseUint: parsing {_quoted(text)}: value out of range")
    return int(text)


def _prerelease_part(text: str) -> int | str:
    if not text:
        raise SemverError("format", "Prerelease is empty")
    if _DIGITS.fullmatch(text):
        if len(text) > 1 and text[0] == "0":
            raise SemverError("format", f"Numeric PreRelease version must not contain leading zeroes {_quoted(text)}")
        return _uint64(text)
    if not _ALPHANUMERIC.fullmatch(text):
        raise SemverError("format", f"Invalid character(s) found in prerelease {_quoted(text)}")
    return text


def _build_part(text: str) -> str:
    if not text:
        raise SemverError("format", "Build meta data is empty")
    if not _ALPHANUMERIC.fullmatch(text):
        raise SemverError("format", f"Invalid character(s) found in build meta data {_quoted(text)}")
    return text


@lru_cache(maxsize=4096)
def _parse(text: str) -> Semver:
    if not text:
        raise SemverError("format", "Version string empty")
    parts = text.split(".", 2)
    if len(parts) != 3:
        raise SemverError("format", "No Major.Minor.Patch elements found")
    major, minor = _number(parts[0], "Major"), _number(parts[1], "Minor")
    rest, plus, build = parts[2].partition("+")
    rest, minus, prerelease = rest.partition("-")
    patch = _number(rest, "Patch")
    return Semver(
        major,
        minor,
        patch,
        tuple(_prerelease_part(part) for part in prerelease.split(".")) if minus else (),
        tuple(_build_part(part) for part in build.split(".")) if plus else (),
    )
