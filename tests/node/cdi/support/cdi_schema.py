"""The CDI JSON schema that we wrote from the specification, as one function for every test that renders documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema

_SCHEMA = json.loads((Path(__file__).parents[1] / "schema.json").read_text())
_VALIDATOR = jsonschema.Draft202012Validator(_SCHEMA)


def check(document: dict[str, Any]) -> None:
    """Fail, naming every fault, unless the document is what the CDI specification allows at its version."""
    faults = [f"{fault.json_path}: {fault.message}" for fault in _VALIDATOR.iter_errors(document)]
    assert not faults, "\n".join(faults)
