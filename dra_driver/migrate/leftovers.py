"""What still speaks of the device plugin after a migration: found anywhere in an object, and said.

In: an object after its pods were moved. Out: losses. It changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dra_driver.migrate.labels import DOMAIN
from dra_driver.migrate.report import Step, Subject
from dra_driver.migrate.resources import QUOTA, kind_of

_SKIPPED = {"status", "metadata", "tolerations"}
_NODE_RULES = {"nodeSelector", "nodeAffinity", "topologyKey"}


def say_leftovers(wire: dict[str, Any], subject: Subject) -> None:
    """Say what still names a resource or a label of the device plugin and was not spoken of."""
    known = [row.what for row in subject.report.losses if row.subject == subject.name]
    for key, value in wire.items():
        if key in _SKIPPED:
            continue
        for path, text in _mentions(value, (key,)):
            if not any(text in one for one in known):
                _say(text, path, subject)


def _mentions(value: Any, path: tuple[Step, ...]) -> Iterator[tuple[tuple[Step, ...], str]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in _SKIPPED:
                continue
            if isinstance(key, str) and _is_ours(key, path):
                yield (*path, key), key
            yield from _mentions(inner, (*path, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _mentions(inner, (*path, number))
    elif isinstance(value, str) and _is_ours(value, path):
        yield path, value


def _is_ours(text: str, path: tuple[Step, ...]) -> bool:
    if kind_of(text.removeprefix(QUOTA).removeprefix("limits.")) is not None:
        return True
    is_rule = any(step in _NODE_RULES for step in path)
    return is_rule and text.startswith(DOMAIN)


def _say(text: str, path: tuple[Step, ...], subject: Subject) -> None:
    if any(step in _NODE_RULES for step in path):
        what, remedy = (
            f"{text} still names a label of GPU feature discovery",
            "it works as long as GPU feature discovery labels the nodes; else take it out",
        )
    else:
        what, remedy = (
            f"{text} is named here in a way that is not known",
            "look at the page of its controller: it may take claims, or need the extended resource of a DeviceClass",
        )
    subject.lost("mention", what, remedy, *path)
