"""Recognise Helm templates and refuse them: text that has to be rendered first can't be migrated.

In: a text. Raises: InputError for a Helm template. Braces inside values that serve another tool (parameters of Argo,
labels of alerts) do not make a text a template.
"""

from __future__ import annotations

import re

from dra_driver.model.errors import InputError

_CERTAIN = re.compile(
    r"\{\{-?\s*(\.(Values|Release|Chart|Capabilities|Files|Template)\b|\$\.(Values|Release)|include\s+\")"
)
# Unquoted braces at the start of a line or of a value, which YAML would read as a mapping in a mapping.
_BARE = re.compile(r"^[ \t]*(?:- +)?(?:[\w./\"'-]+:[ \t]+)?\{\{-?[^{]", re.MULTILINE)
_BLOCK = re.compile(r":[ \t]+[|>][-+0-9]*[ \t]*(#.*)?$")


def check_no_template(text: str, origin: str) -> None:
    """Refuse a Helm template. Raises: InputError("input.template")."""
    found = _CERTAIN.search(text) or next(
        (one for one in _BARE.finditer(text) if not _in_text(text, one.start())), None
    )
    if found is None:
        return
    line = text.count("\n", 0, found.end()) + 1
    raise InputError(
        "template",
        f"{origin}:{line} is a Helm template, not a manifest: {found[0].strip()}",
        hint="render it first: helm template NAME CHART | dra-driver migrate - ; then write what the diff shows into"
        " the chart",
    )


def _in_text(text: str, start: int) -> bool:
    """Return whether a line is part of a block scalar: below a key that ends in | or >, and indented deeper."""
    end = text.find("\n", start)
    line = text[start : end if end >= 0 else len(text)]
    depth = len(line) - len(line.lstrip())
    for above in reversed(text[:start].splitlines()):
        if not above.strip():
            continue
        level = len(above) - len(above.lstrip())
        if level < depth:
            if _BLOCK.search(above) is not None:
                return True
            depth = level
    return False
