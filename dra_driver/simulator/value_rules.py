"""Value rules: the form of names, labels, selectors, opaque configs and tolerations.

In: one value and its field path. Out: faults. Source: k8s.io/apimachinery util/validation; resource/validation.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from dra_driver.base import errors
from dra_driver.base.names import is_dns_label
from dra_driver.base.versions import CONSUMABLE_CAPACITY, LIST_ATTRIBUTES, Since, knows_gate
from dra_driver.base.wire import ClaimWire, Wire
from dra_driver.simulator.shapes import Faults, RuleContext

_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_C_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LABEL_TEXT = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
SUBDOMAIN_CHARS = 253
LABEL_CHARS = 63
LIST_ENTRIES = 32  # the most selectors, constraints, configs or requests in a claim or class

_LABEL_RULE = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-'"
_SUBDOMAIN_RULE = "a lowercase RFC 1123 subdomain is expected"


def check_label_name(text: str | None, path: str, faults: Faults) -> None:
    """Check a required DNS label."""
    if not text:
        faults.required(path)
    elif not is_dns_label(text):
        faults.invalid(path, text, _LABEL_RULE)


def check_subdomain(text: str | None, path: str, faults: Faults, *, maximum: int = SUBDOMAIN_CHARS) -> None:
    """Check a required DNS subdomain."""
    if not text:
        faults.required(path)
    elif len(text) > maximum:
        faults.too_long(path, maximum)
    elif not _SUBDOMAIN.fullmatch(text):
        faults.invalid(path, text, _SUBDOMAIN_RULE)


def check_driver(text: str | None, path: str, faults: Faults) -> None:
    """Check a driver name; the API accepts upper case (with a warning)."""
    check_subdomain(text.lower() if text else text, path, faults, maximum=errors.ATTRIBUTE_DOMAIN_CHARS)


def check_pool(text: str | None, path: str, faults: Faults) -> None:
    """Check a pool name: DNS subdomains joined by slashes."""
    if not text:
        faults.required(path)
        return
    if len(text) > errors.POOL_NAME_CHARS:
        faults.too_long(path, errors.POOL_NAME_CHARS)
    if not all(_SUBDOMAIN.fullmatch(part) and len(part) <= SUBDOMAIN_CHARS for part in text.split("/")):
        faults.invalid(path, text, _SUBDOMAIN_RULE)


def check_qualified_name(text: str, path: str, faults: Faults, *, needs_domain: bool = False) -> None:
    """Check the name of an attribute or capacity: `name` or `domain/name`.

    With more slashes the server checks neither the domain nor the form of the name, and neither does this function.
    """
    parts = text.split("/")
    if len(parts) == 1 and needs_domain:
        faults.invalid(path, text, "must include a domain")
    if len(parts) == 2 and not parts[0]:
        faults.invalid(path, "", "the domain must not be empty")
    elif len(parts) == 2:
        check_driver(parts[0], path, faults)
    name = parts[-1]
    if len(parts) == 2 and not name:
        faults.invalid(path, "", "the name must not be empty")
    elif len(name) > errors.ATTRIBUTE_NAME_CHARS:
        faults.too_long(path, errors.ATTRIBUTE_NAME_CHARS)
    elif len(parts) < 3 and not _C_IDENTIFIER.fullmatch(name):
        faults.invalid(path, name, "a valid C identifier must start with alphabetic character or '_'")


def of_key(path: str, key: str, minor: int) -> str:
    """Return the field path of a fault in the key of a map, which contains the key up to 1.35."""
    return f"{path}[{key}]" if minor < Since.PLAIN_KEY_PATHS else path


def check_label_key(text: str, path: str, faults: Faults) -> None:
    """Check a label key: `name` or `prefix/name`."""
    prefix, slash, name = text.rpartition("/")
    if slash:
        check_subdomain(prefix, path, faults)
    if not name:
        faults.invalid(path, text, "name part must be non-empty")
    if len(name) > LABEL_CHARS or not _LABEL_TEXT.fullmatch(name):
        faults.invalid(path, text, "name part must consist of alphanumeric characters, '-', '_' or '.'")


def check_label_value(text: str, path: str, faults: Faults) -> None:
    """Check a label value, which may be empty."""
    if text and (len(text) > LABEL_CHARS or not _LABEL_TEXT.fullmatch(text)):
        faults.invalid(path, text, "a valid label must consist of alphanumeric characters, '-', '_' or '.'")


def check_selectors(selectors: Sequence[Wire], path: str, context: RuleContext, faults: Faults) -> None:
    """Check CEL selectors: their number and length, and that each compiles by the rules for new expressions."""
    if len(selectors) > LIST_ENTRIES:
        faults.too_many(path, len(selectors), LIST_ENTRIES)
    for i, selector in enumerate(selectors):
        at = f"{path}[{i}].cel"
        expression = (selector.get("cel") or {}).get("expression")
        if "cel" not in selector:
            faults.required(at)
        elif not expression:
            faults.required(f"{at}.expression")
        elif len(expression.encode()) > errors.CEL_EXPRESSION_BYTES:
            faults.too_long(f"{at}.expression", errors.CEL_EXPRESSION_BYTES)
        else:
            _check_compiles(expression, f"{at}.expression", context, faults)


def _check_compiles(expression: str, path: str, context: RuleContext, faults: Faults) -> None:
    from dra_driver.selectors import SelectorCompileError, compile_selector  # noqa: PLC0415  (tables load on first use)

    asked = (gate for gate in (CONSUMABLE_CAPACITY, LIST_ATTRIBUTES) if knows_gate(context.minor, gate))
    gates = {gate: gate in context.gates for gate in asked}
    try:
        selector = compile_selector(expression, kubernetes=f"1.{context.minor}", gates=gates, environment="new")
    except SelectorCompileError as fault:
        faults.invalid(path, expression, fault.text)
        return
    if not selector.admissible:
        faults.forbidden(path, "too complex, exceeds cost limit")


def check_opaque(opaque: Wire | None, path: str, faults: Faults) -> None:
    """Check an opaque config: a driver and a JSON object of at most 10 KiB."""
    if opaque is None:
        faults.required(path)
        return
    check_driver(opaque.get("driver"), f"{path}.driver", faults)
    parameters: Any = opaque.get("parameters")
    if parameters is None:
        faults.required(f"{path}.parameters")
    elif not isinstance(parameters, dict):
        faults.invalid(f"{path}.parameters", "<value omitted>", "parsing as JSON object failed")
    elif len(json.dumps(parameters, separators=(",", ":")).encode()) > errors.OPAQUE_PARAMETERS_BYTES:
        faults.too_long(f"{path}.parameters", errors.OPAQUE_PARAMETERS_BYTES)


def check_tolerations(tolerations: Sequence[Wire], path: str, faults: Faults) -> None:
    """Check the tolerations of a request."""
    for i, toleration in enumerate(tolerations):
        at = f"{path}[{i}]"
        key, operator = toleration.get("key", ""), toleration.get("operator", "")
        if key:
            check_label_key(key, f"{at}.key", faults)
        if operator == "Exists":
            if toleration.get("value"):
                faults.invalid(f"{at}.value", toleration["value"], "must be empty for operator `Exists`")
        elif operator == "Equal":
            check_label_value(toleration.get("value", ""), f"{at}.value", faults)
        else:
            faults.unsupported(f"{at}.operator", operator, ("Equal", "Exists"))
        effect = toleration.get("effect", "")
        if effect not in ("", "None", "NoSchedule", "NoExecute"):
            faults.unsupported(f"{at}.effect", effect, ("NoExecute", "NoSchedule", "None"))


def check_node_selector(selector: Wire, path: str, faults: Faults) -> None:
    """Check a node selector of the resource API, which must have exactly one term."""
    terms = selector.get("nodeSelectorTerms") or []
    if not terms:
        faults.required(f"{path}.nodeSelectorTerms", "must have at least one node selector term")
    if len(terms) != 1:
        faults.invalid(f"{path}.nodeSelectorTerms", len(terms), "must have exactly one node selector term")


# Quotas

KIND = "ResourceQuota"
_ENDING = ".deviceclass.resource.k8s.io/devices"
_ALL = 32


def refusal(quotas: Iterable[Wire], claims: Iterable[ClaimWire], claim: ClaimWire) -> str:
    """Return the API server's message about the first quota that a claim would exceed; "" if there is none."""
    used: Counter[str] = Counter()
    for one in claims:
        used += devices_by_class(one)
    wanted = devices_by_class(claim)
    for quota in quotas:
        for key, limit in (quota["spec"].get("hard") or {}).items():
            name = key.removesuffix(_ENDING)
            if name != key and wanted[name] and used[name] + wanted[name] > int(limit):
                counts = f"requested: {key}={wanted[name]}, used: {key}={used[name]}, limited: {key}={limit}"
                return f"exceeded quota: {quota['metadata']['name']}, {counts}"
    return ""


def devices_by_class(claim: ClaimWire) -> Counter[str]:
    """Return the largest number of devices of each class that a claim may take."""
    found: Counter[str] = Counter()
    for request in claim["spec"]["devices"].get("requests") or ():
        if "exactly" in request:
            found[request["exactly"]["deviceClassName"]] += _count(request["exactly"])
        most: dict[str, int] = {}
        for alternative in request.get("firstAvailable") or ():
            most[alternative["deviceClassName"]] = max(_count(alternative), most.get(alternative["deviceClassName"], 0))
        found.update(most)
    return found


def _count(request: Wire) -> int:
    return _ALL if request.get("allocationMode") == "All" else int(request.get("count", 1))
