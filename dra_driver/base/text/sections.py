"""Sections: the shapes of what people write, as pydantic models that find all mistakes at once, in plain words.

In: plain values. Out: frozen models, or one ValidationError, of which every error has its path and a complete message.
Unknown fields are mistakes, nothing is converted, and null counts as not given. `read_strictly` reads files with them.
Importing this module costs megabytes of memory, so an agent imports it only if there is something to read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, cast, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PlainValidator,
    PrivateAttr,
    Strict,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from dra_driver.base.errors import InputError
from dra_driver.base.text.yaml_values import line_of, read_document

MAX_FAULTS = 1000  # of one section; a file with more has no hope
_MAX_VALUE = 64  # characters of a value that a mistake repeats
_COMPLETE = "dra_driver"  # the type of errors whose message is complete
_DURATION = re.compile(r"(?P<number>[1-9][0-9]{0,6})(?P<unit>[smhd])")
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_EXPECTED = {
    "bool_type": "true or false",
    "dict_type": "named fields",
    "int_type": "a whole number",
    "list_type": "a list",
    "string_type": "a string",
    "string_too_short": "a string",
}

_Tree = dict[str | int, "_Tree"]
T = TypeVar("T")
Choice = Annotated[T, Strict(strict=False)]  # a member of an enumeration, given by its value
Text = Annotated[str, Field(min_length=1, max_length=1024)]


class Section(BaseModel):
    """Named fields of a file. A field's description is what a mistake says was expected there."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, alias_generator=to_camel)

    _given: frozenset[str] = PrivateAttr(frozenset())  # the names of all fields that the file has, of wrong ones too
    _context: Any = PrivateAttr(None)  # what the reader of the file says about it

    def combined_faults(self) -> Iterator[InitErrorDetails]:
        """Yield the faults that several fields have together; a field that is wrong by itself has its default here."""
        yield from ()

    @classmethod
    def message_of(cls, error: ErrorDetails, fields: Mapping[str, FieldInfo]) -> str:
        """Return one of pydantic's errors in words; `fields` are those of this section by the names in the file."""
        return _message_of(error, fields)

    @model_validator(mode="wrap")
    @classmethod
    def _find_all_faults(cls, value: Any, validate: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        """Validate the fields, and then what they are together, even if some of them are wrong."""
        fields = {field.alias or name: field for name, field in cls.model_fields.items()}
        if not isinstance(value, dict):
            error = ErrorDetails(type="model_type", loc=(), msg="", input=value)
            raise wrong(cls.message_of(error, fields))
        given = {name: field for name, field in value.items() if field is not None or name not in fields}
        faults: list[InitErrorDetails] = []
        right = given
        while True:
            try:
                section = validate(right)
                break
            except ValidationError as error:
                found = error.errors(include_url=False)[: MAX_FAULTS + 1]
                faults = faults or [fault(complete(one) or cls.message_of(one, fields), *one["loc"]) for one in found]
                before, right = right, _constants(fields) | _without(right, _tree(one["loc"] for one in found))
                if right == before or len(faults) > MAX_FAULTS:  # a field is missing, or the rest does not matter
                    raise ValidationError.from_exception_data(cls.__name__, faults) from None
        section._given, section._context = frozenset(given), info.context  # noqa: SLF001 - its own class
        faults += section.combined_faults()
        if faults:
            raise ValidationError.from_exception_data(cls.__name__, faults)
        return section


def wrong(message: str) -> PydanticCustomError:
    """Return the error of a value, for a validator to raise."""
    return PydanticCustomError(_COMPLETE, "{message}", {"message": message})


def fault(message: str, *where: str | int) -> InitErrorDetails:
    """Return the fault of a field below a section; `where` has the names and indices that lead there."""
    return InitErrorDetails(type=wrong(message), loc=where, input=None)


def seconds(minimum: float = 1, maximum: float = float("inf")) -> PlainValidator:
    """Return the validator of a duration, given as a number with its unit."""

    def read(value: object) -> float:
        match = _DURATION.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            raise wrong(f"expected a duration such as 90s, 10m, 24h or 7d, got {described(value)}")
        found = float(int(match["number"]) * _UNIT_SECONDS[match["unit"]])
        if not minimum <= found <= maximum:
            raise wrong(f"must be from {minimum:.0f}s to {maximum:.0f}s")
        return found

    return PlainValidator(read)


def described(value: object) -> str:
    """Return how a mistake repeats a value of the file."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "named fields"
    if isinstance(value, list):
        return "a list"
    return "nothing" if value is None else repr(shortened(value, _MAX_VALUE) if isinstance(value, str) else value)


def shortened(text: str, length: int) -> str:
    """Return a text of the file, cut to a number of characters."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def complete(error: ErrorDetails) -> str:
    """Return the message of an error that a section has found; "" for one of pydantic's own."""
    return str(error["ctx"]["message"]) if error["type"] == _COMPLETE else ""


def _message_of(error: ErrorDetails, fields: Mapping[str, FieldInfo]) -> str:
    kind, context, where = error["type"], error.get("ctx", {}), error["loc"]
    if kind == "model_type":
        return f"expected named fields, got {described(error['input'])}"
    if kind == "extra_forbidden":
        return f"unknown field (known here: {', '.join(sorted(fields))})"
    if where[-1] == "[key]" and kind == "enum":
        return f"unknown field (known here: {_words(context).replace(' or ', ', ')})"
    if kind == "too_long":
        return f"{context['actual_length']} entries, at most {context['max_length']} are allowed"
    field = fields[str(where[0])]
    if kind == "too_short":
        return f"expected {(len(where) == 1 and field.description) or 'at least one entry'}, got none"
    expected = _expected(kind, context, field)
    if kind == "missing":
        return f"missing, expected {expected}"
    return f"expected {expected}, got {described(error['input'])}"


def _expected(kind: str, context: Mapping[str, Any], field: FieldInfo) -> str:
    """Return what was expected of a value: of its kind first, and then what its field says."""
    if kind in {"list_type", "dict_type", "bool_type"}:
        return _EXPECTED[kind]
    if field.description:
        return field.description
    bounds = {name: getattr(one, name) for one in field.metadata for name in ("ge", "le") if hasattr(one, name)}
    if len(bounds) == 2:
        return f"a whole number from {bounds['ge']} to {bounds['le']}"
    if get_origin(field.annotation) is Literal:
        return " or ".join(map(repr, get_args(field.annotation)))
    if "expected" in context:
        return _words(context)
    limits = {"ge": "at least", "le": "at most", "min_length": "at least", "max_length": "at most"}
    limit = next((f"{limits[name]} {value}" for name, value in context.items() if name in limits), "a value")
    return _EXPECTED.get(kind) or limit + (" characters" if kind == "string_too_long" else "")


def _words(context: Mapping[str, Any]) -> str:
    return str(context["expected"]).replace("'", "")


def _constants(fields: Mapping[str, FieldInfo]) -> dict[str, Any]:
    """Return the fields that have one possible value, such as a version: a wrong one hides no other mistake."""
    values = {name: get_args(one.annotation) for name, one in fields.items() if get_origin(one.annotation) is Literal}
    return {name: words[0] for name, words in values.items() if len(words) == 1}


def _tree(places: Iterable[Sequence[str | int]]) -> _Tree:
    tree: _Tree = {}
    for place in places:
        node = tree
        for part in place:
            node = node.setdefault(part, {})
    return tree


def _without(fields: dict[str, Any], wrong_fields: _Tree) -> dict[str, Any]:
    """Return the fields without the wrong ones, the lists with a wrong entry, and the sections that lack a field."""
    right: dict[str, Any] = {}
    for name, value in fields.items():
        inner = wrong_fields.get(name)
        if inner is None:
            right[name] = value
        elif inner and isinstance(value, dict) and all(part in value for part in inner):
            right[name] = _without(value, inner)
    return right


# Strict files

MAX_LISTED = 50  # mistakes of one file
_MAX_NAME = 100  # characters of a field's name that a mistake repeats

S = TypeVar("S", bound=Section)


def read_strictly(
    path: Path,
    model: type[S] | Callable[[object], type[S]],
    code: str,
    what: str,
    *,
    hint: str = "",
    context: Any = None,
) -> S:
    """Return a file as a model, or as the one that `model` chooses for its content.

    `code` is the error's code without "input.", and `what` is what the error's message calls the file; `context` goes
    to the validators.

    Raises: InputError(`code`) with every mistake; "input.unreadable", "input.too-large", "input.not-yaml".
    """
    lines: dict[str, int] = {}
    content = read_document(path, lines)
    try:
        chosen = cast("type[S]", model if isinstance(model, type) else model(content))
        return chosen.model_validate(content, context=context)
    except ValidationError as error:
        found = error.errors(include_url=False)
    placed = sorted(((line_of(_path(one["loc"]), lines), one) for one in found), key=lambda place: place[0] or 0)
    listed = [_line(line, one) for line, one in placed[:MAX_LISTED]]
    if len(found) > MAX_LISTED:
        listed.append("…")
    count = f"more than {MAX_FAULTS}" if len(found) > MAX_FAULTS else str(len(found))
    count += " mistakes" if len(found) > 1 else " mistake"
    raise InputError(code, "\n  ".join([f"{what} {path} has {count}:", *listed]), hint=hint)


def _line(line: int | None, error: ErrorDetails) -> str:
    at = f"line {line}: " if line else ""
    return f"{at}{_path(error['loc'], _shown) or 'document'}: {complete(error)}"


def _path(loc: Iterable[str | int], show: Callable[[str], str] = str) -> str:
    """Return the path of a field as users write it; the name of a field is shown by `show`."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{show(part)}" for part in loc if part != "[key]")
    return "".join(parts).removeprefix(".")


def _shown(name: str) -> str:
    cut = shortened(name, _MAX_NAME)
    return cut if cut.isprintable() else repr(cut)  # a name may hold orders to a terminal
