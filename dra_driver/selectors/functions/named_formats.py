"""The named string formats: format.dns1123Label() and the others.

In: format names and texts. Out: None, or a list of messages.

Source: Kubernetes' CEL format library over apimachinery's validation and the OpenAPI string formats.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from typing import Any

from dra_driver.selectors.functions.network import is_request_uri
from dra_driver.selectors.values.values import NONE, NamedFormat, Optional

_LABEL_1123 = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_LABEL_1035 = r"[a-z]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL_1123}(\.{_LABEL_1123})*"
_QUALIFIED = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_LABEL_VALUE = rf"({_QUALIFIED})?"
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME = re.compile(r"([0-9]{2}):([0-9]{2}):([0-9]{2})(.[0-9]+)?(z|([+-][0-9]{2}:[0-9]{2}))")
_UUID = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}", re.IGNORECASE | re.ASCII)
_BASE64 = re.compile(
    r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})",
)
_LONGEST = 2000  # characters; no name format allows as many, so hostile texts are refused early

_WORDS_1123 = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    "an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '%s')"
)
_WORDS_SUBDOMAIN = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is '%s')"
)
_WORDS_1035 = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, "
    "and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '%s')"
)
_WORDS_QUALIFIED = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '%s')"
)
_WORDS_VALUE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'%s')"
)
_WORDS_PREFIX = (
    "a qualified name must consist of alphanumeric characters, '-', '_' or '.', with an optional DNS subdomain prefix "
    "and '/' (e.g. 'example.com/MyName')"
)


def _too_long(limit: int) -> str:
    return f"must be no more than {limit} bytes"


def _shape(pattern: str, words: str, limit: int, *, prefix: bool = False) -> Callable[[str], list[str]]:
    compiled = re.compile(pattern, re.ASCII)

    def validate(text: str) -> list[str]:
        if prefix and len(text) > 1 and text.endswith("-"):
            text = text[:-2] + "a"
        problems = []
        if len(text.encode("utf-8", "surrogatepass")) > limit:
            problems.append(_too_long(limit))
        if len(text) > _LONGEST or not compiled.fullmatch(text):
            problems.append(words % pattern)
        return problems

    return validate


_is_subdomain = _shape(_SUBDOMAIN, _WORDS_SUBDOMAIN, 253)
_is_qualified_part = _shape(_QUALIFIED, _WORDS_QUALIFIED, 63)


def _qualified_name(text: str) -> list[str]:
    parts = text.split("/")
    if len(parts) > 2:
        return [_WORDS_PREFIX]
    problems = []
    if len(parts) == 2:
        if not parts[0]:
            problems.append("prefix part must be non-empty")
        else:
            problems += [f"prefix part {problem}" for problem in _is_subdomain(parts[0])]
    if not parts[-1]:
        problems.append("name part must be non-empty")
    return problems + _is_qualified_part(parts[-1])


def _is_date(text: str) -> bool:
    if not _DATE.fullmatch(text):
        return False
    try:
        datetime.date.fromisoformat(text)
    except ValueError:
        return text.startswith("0000-")
    return True


def _date(text: str) -> list[str]:
    return [] if _is_date(text) else ["invalid date"]


def _datetime(text: str) -> list[str]:
    day, t, rest = text.lower().partition("t")
    found = _TIME.fullmatch(rest.partition("t")[0]) if t and _is_date(day) else None
    if found is None or found[1] > "23" or found[2] > "59" or found[3] > "59":
        return ["invalid datetime"]
    return []


def _uri(text: str, *, strict: bool = False) -> list[str]:
    problem = is_request_uri(text, strict=strict)
    return [problem] if problem else []


_FORMATS: dict[str, tuple[Callable[[str], list[str]], int]] = {
    # The validation, and the length of the pattern that the budget is charged for.
    "dns1123Label": (_shape(_LABEL_1123, _WORDS_1123, 63), 30),
    "dns1123Subdomain": (_is_subdomain, 60),
    "dns1035Label": (_shape(_LABEL_1035, _WORDS_1035, 63), 30),
    "qualifiedName": (_qualified_name, 60),
    "dns1123LabelPrefix": (_shape(_LABEL_1123, _WORDS_1123, 63, prefix=True), 30),
    "dns1123SubdomainPrefix": (_shape(_SUBDOMAIN, _WORDS_SUBDOMAIN, 253, prefix=True), 60),
    "dns1035LabelPrefix": (_shape(_LABEL_1035, _WORDS_1035, 63, prefix=True), 30),
    "labelValue": (_shape(_LABEL_VALUE, _WORDS_VALUE, 63), 40),
    "uri": (_uri, 1103),
    "uuid": (lambda text: [] if _UUID.fullmatch(text) else ["does not match the UUID format"], 67),
    "byte": (lambda text: [] if _BASE64.fullmatch(text) else ["invalid base64"], 84),
    "date": (_date, 78),
    "datetime": (_datetime, 78),
}


def pattern_size(value: NamedFormat) -> int:
    """Return the pattern length that is charged for validating against a format."""
    return _FORMATS[value.name][1]


def _validate(value: NamedFormat, text: str) -> Optional:
    problems = _FORMATS[value.name][0](text)
    return Optional(problems) if problems else NONE


def _validate_strictly(value: NamedFormat, text: str) -> Optional:
    if value.name != "uri":
        return _validate(value, text)
    problems = _uri(text, strict=True)
    return Optional(problems) if problems else NONE


def _named(name: str) -> Optional:
    return Optional(NamedFormat(name)) if name in _FORMATS else NONE


def _constant(name: str) -> Callable[[], NamedFormat]:
    value = NamedFormat(name)
    return lambda: value


NAMED_FORMATS: dict[str, dict[tuple[type, ...], Any]] = {
    "format.named": {(str,): _named},
    "validate": {(NamedFormat, str): _validate},
    "validate since 1.36": {(NamedFormat, str): _validate_strictly},
    **{f"format.{name}": {(): _constant(name)} for name in _FORMATS},
}
