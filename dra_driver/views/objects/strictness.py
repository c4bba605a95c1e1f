"""Refuse fields that the API does not have, and find the line and column of a fault.

In: an object that people write (claim, template, class), or a fault with a path. Out: an error with line and column.
The API server drops a misspelt field, and the object then asks for something other than its author meant.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

import yaml

from dra_driver.embedded.api_rules.shape import Map
from dra_driver.embedded.api_rules.shapes import CLASS
from dra_driver.model.errors import InputError
from dra_driver.model.wire import Wire
from dra_driver.views.objects.api_versions import as_v1
from dra_driver.views.objects.documents import Document
from dra_driver.views.objects.fields import FieldFault, field_faults, has_fields
from dra_driver.views.objects.newest_fields import CLAIM, SLICE, TEMPLATE
from dra_driver.views.objects.shape_checker import ShapeChecker
from dra_driver.views.objects.texts import STDIN, read_text, shown

_SHAPES: dict[str, Any] = {
    "ResourceClaim": CLAIM,
    "ResourceClaimTemplate": TEMPLATE,
    "DeviceClass": CLASS,
    "ResourceSlice": SLICE,
}
_META = frozenset({"apiVersion", "kind", "metadata", "status"})
_STEP = re.compile(r"\[(\d+)\]|\.?([^.\[]+)")
_MAX_BYTES = 4 << 20  # the largest file that is read a second time to find a line
Step = str | int


def refuse_unknown(document: Document, wire: Any) -> None:
    """Refuse an object with an unknown field, or with a value of the wrong type. Raises: InputError("input.object")."""
    if has_fields(document.kind, document.wire.get("apiVersion")):
        for fault in field_faults(document.kind, wire):
            raise _fault(document, fault)
    shape = _SHAPES.get(document.kind)
    if shape is None:
        return
    for path, known in _unknown({key: one for key, one in wire.items() if key not in _META}, shape, ()):
        raise _fault(document, FieldFault(path, known=tuple(known)))


def checked(document: Document, checker: ShapeChecker) -> Wire:
    """Check a document, and return its object in v1. Raises: InputError with line and column."""
    try:
        wire = as_v1(document.wire, f"{shown(document.origin)}: {document.kind} {document.name}")
        if checker.knows(document.kind):
            checker.check(document.kind, wire, shown(document.origin))
    except InputError as fault:
        raise with_place(document, fault) from None
    refuse_unknown(document, wire)
    return wire


def _fault(document: Document, fault: FieldFault) -> InputError:
    where = f"{_at(document, fault.path)}: {document.kind} {document.name}: {_written(fault.path)}"
    if fault.wanted:
        return InputError("object", f"{where} is not {fault.wanted}")
    near = get_close_matches(str(fault.path[-1]), fault.known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(sorted(fault.known)) or 'nothing'}"
    return InputError("object", f"{where} is not a field of the API", hint=hint)


def with_place(document: Document, fault: InputError) -> InputError:
    """Return a fault about a document with the line and column of the field that it names."""
    head = f"{shown(document.origin)}: {document.kind} {document.name}: "
    if fault.code not in {"input.object", "input.bad-config"} or not fault.message.startswith(head):
        return fault
    rest = fault.message.removeprefix(head)
    path = tuple(
        int(match[1]) if match[1] else match[2] for match in _STEP.finditer(re.split(r"[: ]", rest, maxsplit=1)[0])
    )
    text = f"{_at(document, path)}: {document.kind} {document.name}: {rest}"
    return InputError(fault.code.removeprefix("input."), text, hint=fault.hint)


def _unknown(value: Any, shape: Any, path: tuple[Step, ...]) -> Iterator[tuple[tuple[Step, ...], list[str]]]:
    """Yield the path of each field that the shape does not have, with the fields that it has at that place."""
    if isinstance(shape, dict) and isinstance(value, dict):
        for key, inner in value.items():
            if key not in shape:
                yield (*path, str(key)), list(shape)
            else:
                yield from _unknown(inner, shape[key], (*path, key))
    elif isinstance(shape, list) and isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _unknown(inner, shape[0], (*path, number))
    elif isinstance(shape, Map) and isinstance(value, dict):
        for key, inner in value.items():
            yield from _unknown(inner, shape.value, (*path, str(key)))


def _written(path: tuple[Step, ...]) -> str:
    return "".join(f"[{one}]" if isinstance(one, int) else f".{one}" for one in path).lstrip(".")


def _at(document: Document, path: tuple[Step, ...]) -> str:
    """Return file, line and column of a field; if it is not in the file, those of the innermost field around it."""
    mark = _mark(document, (*document.path, *path))
    where = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
    return f"{shown(document.origin)}{where}"


def _mark(document: Document, path: tuple[Step, ...]) -> yaml.Mark | None:
    try:
        text = document.text or ("" if document.origin == STDIN else read_text(document.origin))
        if len(text) > _MAX_BYTES:
            return None
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        node = list(yaml.compose_all(text, Loader=loader))[document.number]
    except (InputError, yaml.YAMLError, IndexError, RecursionError):
        return None
    mark = node.start_mark
    while path:
        found, taken = _next(node, path)
        if found is None:
            break
        mark, node = found
        path = path[taken:]
    return mark


def _next(node: Any, path: tuple[Step, ...]) -> tuple[tuple[yaml.Mark, Any] | None, int]:
    """Return the next field or entry on a path, and how many steps lead to it: several if its key contains dots."""
    for taken in range(1, len(path) + 1):
        step = path[0] if taken == 1 else ".".join(map(str, path[:taken]))
        if found := _child(node, step):
            return found, taken
    return None, 0


def _child(node: Any, step: Step) -> tuple[yaml.Mark, Any] | None:
    """Return where a field or entry begins, and its value."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if getattr(key, "value", None) == step:
                return key.start_mark, value
    elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
        return node.value[step].start_mark, node.value[step]
    return None
