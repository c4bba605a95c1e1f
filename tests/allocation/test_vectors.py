from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.oracle.outcomes import comparable
from dra_driver.allocation.allocator import simulate_batch_line

SHARED = Path(os.environ.get("DRA_SHARED") or Path(__file__).resolve().parents[3] / "shared")
FILE = SHARED / "vectors" / "allocation.jsonl"


def recorded() -> Iterator[Any]:
    if not FILE.is_file():
        yield pytest.param(
            None,
            "",
            marks=pytest.mark.skip(reason="recordings and figures beside the repository are not here (DRA_SHARED)"),
            id="none",
        )
        return
    for text in FILE.read_text().splitlines():
        line = json.loads(text)
        yield pytest.param(line, "1.35", id=f"{line['id']}-1.35")
        if "expected136" in line:
            yield pytest.param(line, "1.36", id=f"{line['id']}-1.36")


@pytest.mark.parametrize(("line", "kubernetes"), list(recorded()))
def test_an_outcome_is_one_that_was_recorded_from_the_scheduler(line: Any, kubernetes: str) -> None:
    answer = simulate_batch_line({"id": line["id"], "kubernetes": kubernetes, "input": line["input"]})
    assert answer["id"] == line["id"]
    expected = line["expected" if kubernetes == "1.35" else "expected136"]
    assert set(expected) <= set(answer["nodes"])
    for name, wanted in expected.items():
        got = answer["nodes"][name]
        possible = [(o["ok"], comparable(o["results"]), o["category"]) for o in wanted["outcomes"]]
        assert (got["ok"], comparable(got["results"]), got["category"]) in possible
        texts = {o["error"] for o in wanted["outcomes"] if o["category"] == got["category"]}
        assert not texts or got["error"] in texts or got["category"].startswith("cel-")
