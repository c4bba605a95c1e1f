"""Kind rules: which rules each kind has."""

from __future__ import annotations

from collections.abc import Mapping

from dra_driver.embedded.kinds import Kind
from dra_driver.embedded.rules import Rules

RULES: Mapping[Kind, Rules] = {}
