"""The envelope of `--output json` and `--output yaml`: every document that a command writes passes through here.

In: the kind of a document and its content. Out: what is written. The kinds are listed once, so that a program can tell
what it reads from the command that wrote it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class DocumentKind(StrEnum):
    """What a document describes."""

    NODE_OFFER = "NodeOffer"
    NODE_HEALTH = "NodeHealth"
    DOCTOR_REPORT = "DoctorReport"
    SLICE_TREE = "SliceTree"
    CLAIM_TREE = "ClaimTree"
    EXPLANATION = "Explanation"
    EXPLANATIONS = "Explanations"
    SIMULATION = "Simulation"
    MIGRATION = "Migration"
    SELECTOR_MATCHES = "SelectorMatches"
    SELECTOR_EXPLANATIONS = "SelectorExplanations"
    SELECTOR_FINDINGS = "SelectorFindings"


@dataclass(frozen=True, slots=True)
class OutputDocument:
    """One document for programs. `content` is made of what JSON knows: mappings, lists, text, numbers, booleans."""

    kind: DocumentKind
    content: Any

    def wire(self) -> Any:
        """Return what is written."""
        return self.content
