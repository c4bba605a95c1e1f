"""Leftovers: the names of a device plugin's resources and labels that remain in an object after its migration.

In: an object after its pods were migrated. Out: losses in the report. The object is not changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from dra_driver.migrate.labels.requirement import DOMAIN
from dra_driver.migrate.other_vendors import INSIDE_TEXT, labeller_of
from dra_driver.migrate.report import ReportSubject, Step
from dra_driver.migrate.resources import QUOTA, Known, kind_of

_SKIPPED = {"status", "metadata", "tolerations"}
# Inside a longer text such as a patch, a resource appears as a key or at the end of a JSON pointer, where "/" is "~1".
_RESOURCE = r"(?:gpu|mig-[0-9]+g\.[0-9]+gb)(?:\.shared)?"
_KEY = rf"(?:nvidia\.com/{_RESOURCE}|{INSIDE_TEXT.format(slash='/')})(?=[\"']?[ \t]*:)"
_POINTER = rf"(?:nvidia\.com~1{_RESOURCE}|{INSIDE_TEXT.format(slash='~1')})(?![\w.-])"
_INSIDE = re.compile(f"{_KEY}|{_POINTER}")
_PROGRAM_FIELDS = {"command", "args", "env"}  # their strings are for the program in the container and are not manifests
_NODE_RULES = {"nodeSelector", "nodeAffinity", "topologyKey"}


def report_leftovers(wire: dict[str, Any], names: Known, subject: ReportSubject) -> None:
    """Report every remaining resource or label of a device plugin of which no loss was reported before."""
    known = [row.what for row in subject.report.losses if row.subject == subject.name]
    for key, value in wire.items():
        if key in _SKIPPED:
            continue
        for path, text, is_inside in _mentions(value, (key,), names):
            if not any(text in one for one in known):
                _report(text, path, subject, is_inside=is_inside)


def _mentions(value: Any, path: tuple[Step, ...], names: Known) -> Iterator[tuple[tuple[Step, ...], str, bool]]:
    """Yield each mention: its path, the name, and whether the name is only a part of the text there."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in _SKIPPED:
                continue
            if isinstance(key, str) and _is_ours(key, path, names):
                yield (*path, key), key, False
            yield from _mentions(inner, (*path, key), names)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _mentions(inner, (*path, number), names)
    elif isinstance(value, str) and _is_ours(value, path, names):
        yield path, value, False
    elif isinstance(value, str) and _PROGRAM_FIELDS.isdisjoint(path) and (found := _INSIDE.search(value)) is not None:
        yield path, found[0].replace("~1", "/"), True


def _is_ours(text: str, path: tuple[Step, ...], names: Known) -> bool:
    if _is_unknown(text, path) or kind_of(text.removeprefix(QUOTA).removeprefix("limits."), names) is not None:
        return True
    is_rule = any(step in _NODE_RULES for step in path)
    return is_rule and _is_named_by_plugins(text)


def _is_named_by_plugins(text: str) -> bool:
    return text.startswith(DOMAIN) or labeller_of(text) is not None


def _is_unknown(text: str, path: tuple[Step, ...]) -> bool:
    """Return whether `text` is a resource of the domain in a container; a known one would have been moved by now."""
    return _is_named_by_plugins(text) and path[-2:-1] == ("resources",) and path[-1] in {"limits", "requests"}


def _report(text: str, path: tuple[Step, ...], subject: ReportSubject, *, is_inside: bool) -> None:
    if subject.name.startswith("LimitRange "):
        code = "limit-range"
        what, remedy = (
            f"{text} is set by a LimitRange: its default is added to every container, even to those with claims",
            "take it out; a ResourceQuota can limit how many devices a namespace may have",
        )
    elif _is_unknown(text, path[:-1]) and kind_of(text) is None:
        code = "unknown-resource"
        what, remedy = (
            f"{text} is not one of the device plugin's own resources",
            "migrate the ConfigMap that defines the name together with this file; nothing to do if it is not a GPU"
            if labeller_of(text) is None
            else "take it out, and ask for the same in the claim's selectors; nothing to do if it is not a GPU",
        )
    else:
        code = "mention"
        what, remedy = _mention(text, path, is_inside=is_inside)
    subject.lost(code, what, remedy, *path)


def _mention(text: str, path: tuple[Step, ...], *, is_inside: bool) -> tuple[str, str]:
    """Return the message about a name that is left where it is, and what can be done about it."""
    if any(step in _NODE_RULES for step in path):
        labeller = labeller_of(text) or "GPU feature discovery"
        return (
            f"{text} still names a label of {labeller}",
            f"it works as long as {labeller} labels the nodes; otherwise take it out",
        )
    if is_inside:
        return (
            f"{text} is named inside a string, which is not migrated",
            "migrate the content of the string separately, then put it back",
        )
    return (
        f"{text} is named here, in a place that the migration does not know",
        "see its controller's documentation: it may take claims, or need the extended resource of a DeviceClass",
    )
