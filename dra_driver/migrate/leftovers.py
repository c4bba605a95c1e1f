"""What still speaks of the device plugin after a migration: found anywhere in an object, and said.

In: an object after its pods were moved. Out: losses. It changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from dra_driver.migrate.labels import DOMAIN
from dra_driver.migrate.report import ReportSubject, Step
from dra_driver.migrate.resources import QUOTA, Known, kind_of

_SKIPPED = {"status", "metadata", "tolerations"}
# In a text of its own, such as a patch: a key, or the end of a JSON pointer, which writes a slash as ~1.
_RESOURCE = r"(?:gpu|mig-[0-9]+g\.[0-9]+gb)(?:\.shared)?"
_INSIDE = re.compile(rf"nvidia\.com/{_RESOURCE}(?=[\"']?[ \t]*:)|nvidia\.com~1{_RESOURCE}(?![\w.-])")
_WORDS = {"command", "args", "env"}  # what a program reads is nobody's manifest
_NODE_RULES = {"nodeSelector", "nodeAffinity", "topologyKey"}


def say_leftovers(wire: dict[str, Any], names: Known, subject: ReportSubject) -> None:
    """Say what still names a resource or a label of the device plugin and was not spoken of."""
    known = [row.what for row in subject.report.losses if row.subject == subject.name]
    for key, value in wire.items():
        if key in _SKIPPED:
            continue
        for path, text, is_inside in _mentions(value, (key,), names):
            if not any(text in one for one in known):
                _say(text, path, subject, is_inside=is_inside)


def _mentions(value: Any, path: tuple[Step, ...], names: Known) -> Iterator[tuple[tuple[Step, ...], str, bool]]:
    """Yield paths, names, and whether the name is only a part of the text there."""
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
    elif isinstance(value, str) and _WORDS.isdisjoint(path) and (found := _INSIDE.search(value)) is not None:
        yield path, found[0].replace("~1", "/"), True


def _is_ours(text: str, path: tuple[Step, ...], names: Known) -> bool:
    if _is_unknown(text, path) or kind_of(text.removeprefix(QUOTA).removeprefix("limits."), names) is not None:
        return True
    is_rule = any(step in _NODE_RULES for step in path)
    return is_rule and text.startswith(DOMAIN)


def _is_unknown(text: str, path: tuple[Step, ...]) -> bool:
    """Return whether a container asks for a resource of this domain: one that is known would be gone from there."""
    return text.startswith(DOMAIN) and path[-2:-1] == ("resources",) and path[-1] in {"limits", "requests"}


def _say(text: str, path: tuple[Step, ...], subject: ReportSubject, *, is_inside: bool) -> None:
    code = "mention"
    if subject.name.startswith("LimitRange "):
        code = "limit-range"
        what, remedy = (
            f"{text} stands in a LimitRange: a default is added to every container, those with claims too",
            "take it out; how many devices a namespace may have, a ResourceQuota says",
        )
    elif _is_unknown(text, path[:-1]) and kind_of(text) is None:
        code = "unknown-resource"
        what, remedy = (
            f"{text} is no resource that the device plugin has by itself",
            "give the ConfigMap that made the name up together with this file; if it is no GPU, there is nothing to do",
        )
    elif any(step in _NODE_RULES for step in path):
        what, remedy = (
            f"{text} still names a label of GPU feature discovery",
            "it works as long as GPU feature discovery labels the nodes; else take it out",
        )
    elif is_inside:
        what, remedy = (
            f"{text} is named inside a text, which is not migrated",
            "migrate what the text holds by itself, then put it back",
        )
    else:
        what, remedy = (
            f"{text} is named here in a way that is not known",
            "look at the page of its controller: it may take claims, or need the extended resource of a DeviceClass",
        )
    subject.lost(code, what, remedy, *path)
