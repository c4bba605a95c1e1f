"""The engine against verdicts recorded from real compilers: verdict, kind, type, cost, message, and each device.

The recordings are not part of this repository; DRA_SHARED says where they are.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from dra_driver.selectors import SelectorCompileError, SelectorRuntimeError
from dra_driver.selectors.evaluate.program import prepare_device
from dra_driver.selectors.kubernetes import BatchChecker, KubernetesEngine

SHARED = Path(os.environ.get("DRA_SHARED", Path(__file__).resolve().parents[3] / "shared"))
FILES = [SHARED / "vectors" / name for name in ("cel.jsonl", "cel-generated.jsonl")]
pytestmark = pytest.mark.skipif(
    not FILES[0].is_file(), reason="recordings and figures beside the repository are not here (DRA_SHARED)"
)

EDITIONS = ["1.35", "1.36", "1.36+DRAListTypeAttributes"]


def _engine(header: dict, edition: str) -> KubernetesEngine:
    version, _, gate = edition.partition("+")
    gates = {**header["gates"], **({gate: True} if gate else {})}
    return KubernetesEngine(version, gates=gates)


@cache
def _recorded() -> tuple[tuple[dict, dict], ...]:
    found = []
    for path in FILES:
        lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        found += [(lines[0], line) for line in lines[1:]]
    return tuple(found)


def _cases(edition: str) -> Iterator[tuple[dict, str, dict]]:
    for header, line in _recorded():
        if edition in line:
            yield header, line["expression"], line[edition]


def _compiled(header, edition, expression):
    return _engine(header, edition).compile(expression)


@pytest.mark.parametrize("edition", EDITIONS)
def test_every_expression_compiles_or_is_refused_as_recorded(edition):
    differing = []
    for header, expression, want in _cases(edition):
        text = want.get("compileError")
        try:
            selector = _compiled(header, edition, expression)
        except SelectorCompileError as error:
            if text is None:
                differing.append((expression, error.text))
            elif "Syntax error" in text and text.split()[3] != error.text.split()[3]:
                differing.append((expression, text, error.text))
            continue
        if text is not None or (selector.output_type, selector.max_cost) != (want["type"], want["maxCost"]):
            differing.append((expression, selector.output_type, selector.max_cost, want))
    assert not differing


@pytest.mark.parametrize("edition", EDITIONS)
def test_at_least_98_percent_of_compile_messages_begin_with_the_servers_first_line(edition):
    equal, different = 0, []
    for header, expression, want in _cases(edition):
        text = want.get("compileError")
        if text is None or "Syntax error" in text:
            continue
        with pytest.raises(SelectorCompileError) as caught:
            _compiled(header, edition, expression)
        if caught.value.text.splitlines()[0] == text.splitlines()[0]:
            equal += 1
        else:
            different.append((text, caught.value.text))
    assert equal >= 0.98 * (equal + len(different)), different


@pytest.mark.parametrize("edition", EDITIONS)
def test_every_device_matches_or_fails_as_recorded(edition, record_property):
    differing, errors, equal = [], 0, 0
    for header, expression, want in _cases(edition):
        if "compileError" in want:
            continue
        selector = _compiled(header, edition, expression)
        for device, result in zip(header["devices"], want["results"], strict=True):
            try:
                got = selector.matches_view(prepare_device(device, header["driver"]))
            except SelectorRuntimeError as error:
                got = error.text
            if result.get("error"):
                errors += 1
                equal += got == result["error"]
                if isinstance(got, bool):
                    differing.append((expression, device["name"], got, result))
            elif got is not result["match"]:
                differing.append((expression, device["name"], got, result))
    record_property("runtime_error_texts_equal", f"{equal}/{errors}")
    assert not differing
    assert equal >= 0.98 * errors


def test_the_batch_check_gives_the_same_verdicts_from_default_lines():
    header, _ = _recorded()[0]
    checker = BatchChecker(header)
    for other, line in _recorded():
        if other is not header:
            continue
        verdict, want = checker.check(line), line["1.35"]
        assert (verdict["compileError"] is None) == ("compileError" not in want)
        assert [result.get("match") for result in verdict["results"]] == [
            None if result.get("error") else result["match"] for result in want.get("results", [])
        ]
