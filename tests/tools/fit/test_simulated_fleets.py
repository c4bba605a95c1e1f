"""Simulated fleets: what the nodes of a profile have in common is computed once and not for each node."""

from __future__ import annotations

from pathlib import Path

import pytest

from dra_driver.base.errors import ExitCode
from dra_driver.tools.main import run
from dra_driver.tools.world import profiles

ONE_GPU = str(Path(__file__).resolve().parents[3] / "examples/resourceclaims/01-one-gpu.yaml")


@pytest.mark.parametrize(("command", "version"), [("simulate", "1.34"), ("simulate", "1.36"), ("explain", "1.36")])
def test_a_larger_fleet_needs_the_devices_of_no_more_nodes(
    command: str, version: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    inventories = []
    build = profiles.build_inventory
    monkeypatch.setattr(profiles, "build_inventory", lambda *given: inventories.append(given) or build(*given))
    counts = []
    for nodes in (30, 40):
        inventories.clear()
        fleet = ["--fleet", f"dgx-h100={nodes}", "--kubernetes", version]
        assert run([command, "-f", ONE_GPU, *fleet]) == ExitCode.OK
        assert "gpu-0000-1b-00-0" in capsys.readouterr().out
        counts.append(len(inventories))
    assert counts[0] == counts[1]
