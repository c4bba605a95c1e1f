"""The envelope of `--output json` and `--output yaml`: every document that a command writes passes through here.

In: the kind of a document and its content. Out: a document with `apiVersion`, `kind` and the content, whose keys are in
camelCase. `schemas` defines the fields of each kind; docs/schemas is generated from it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum, StrEnum
from typing import Any

from dra_driver.model.wire import Wire

API_VERSION = "cli.dra-driver/v1"
_BEHIND_UNDERSCORE = re.compile(r"_(\w)")


class DocumentKind(StrEnum):
    """The kinds of documents."""

    NODE_OFFER = "NodeOffer"
    NODE_HEALTH = "NodeHealth"
    NODE_REMEDIATION = "NodeRemediation"
    CORDON = "Cordon"
    DEMO_RUN = "DemoRun"
    VALIDATION = "Validation"
    CONFIG_CHECK = "ConfigCheck"
    DOCTOR_REPORT = "DoctorReport"
    SLICE_TREE = "SliceTree"
    CLAIM_TREE = "ClaimTree"
    FLEET_SUMMARY = "FleetSummary"  # this kind and those of pages are written by the console only
    FLEET_PAGE = "FleetPage"
    DEVICE_PAGE = "DevicePage"
    CLAIMS_PAGE = "ClaimsPage"
    CLAIM_PAGE = "ClaimPage"
    WHAT_IF = "WhatIf"
    ATTENTION = "Attention"
    DASHBOARD = "Dashboard"
    SELECTOR_PLAY = "SelectorPlay"
    CLAIMS_IN_USE = "ClaimsInUse"
    EXPLANATION = "Explanation"
    EXPLANATIONS = "Explanations"
    SIMULATION = "Simulation"
    MIGRATION = "Migration"
    USAGE_REPORT = "UsageReport"
    SELECTOR_MATCHES = "SelectorMatches"
    SELECTOR_EXPLANATIONS = "SelectorExplanations"
    SELECTOR_FINDINGS = "SelectorFindings"
    SELECTOR_VERDICT = "SelectorVerdict"  # the answer to one line of a batch
    ALLOCATION_VERDICT = "AllocationVerdict"  # likewise
    BATCH_FAULT = "BatchFault"  # the answer to a line of a batch that can't be read


@dataclass(frozen=True, slots=True)
class OutputDocument:
    """One document for programs. `content` consists of JSON's types: mappings, lists, text, numbers, booleans."""

    kind: DocumentKind
    content: Mapping[str, Any]

    def wire(self) -> Wire:
        """Return the whole document, as it is written."""
        return {"apiVersion": API_VERSION, "kind": str(self.kind), **self.content}


def batch_fault(name: Any, line: int, error: str) -> OutputDocument:
    """Return the answer to a line of a batch that can't be read; `name` is the line's id, None if it has none."""
    return OutputDocument(DocumentKind.BATCH_FAULT, {"id": name, "line": line, "error": error})


def plain(value: Any) -> Any:
    """Return a value made of dataclasses in JSON's types: fields become camelCase, keys of mappings stay as they are.

    >>> plain({"some_key": ("a", "b")})
    {'some_key': ['a', 'b']}
    """
    if is_dataclass(value) and not isinstance(value, type):
        return {camel(one.name): plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(inner) for inner in value]
    return value


def camel(name: str) -> str:
    """Return a Python name as a JSON name.

    >>> camel("others_possible")
    'othersPossible'
    """
    return _BEHIND_UNDERSCORE.sub(lambda found: found[1].upper(), name)
