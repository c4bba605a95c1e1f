"""Every test that the threat model names exists, and each row for an attacker names a test."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODEL = (ROOT / "docs/security.md").read_text().partition("## Threat model")[2]
NAMED = sorted(set(re.findall(r"`((?:tests|cluster)/[^`]+)`", MODEL)) - {"cluster/scenarios"})


@pytest.mark.parametrize("named", NAMED)
def test_a_test_that_the_threat_model_names_exists(named: str) -> None:
    file, _, function = named.partition("::")
    assert function.startswith("test_"), f"{named} names no test of the file"
    tree = ast.parse((ROOT / file).read_text())
    assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_row_of_the_threat_model_names_a_test() -> None:
    attackers = MODEL.split("\n### ")[1:]
    assert len(attackers) == 5
    for attacker in attackers:
        rows = [line for line in attacker.splitlines() if line.startswith("| ")][1:]
        assert len(rows) >= 5, attacker.partition("\n")[0]
        for row in rows:
            assert re.search(r"`(tests|cluster)/\S+::test_\w+`( \||,)", row), row
