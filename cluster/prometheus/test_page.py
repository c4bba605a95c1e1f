"""The agent's page, judged by promtool: it parses, and the complaints are only about NVIDIA's own names."""

from __future__ import annotations

import json
import subprocess
import urllib.request

import pytest

from cluster.components.parts import BinariesMissing
from cluster.components.programs import prometheus
from dra_driver.hardware.metered import Measure
from tests.support.agents.agent_process import stage
from tests.support.metering.metered_node import MeteredNode

LINTED = 3  # promtool's exit status where the text parses and a name or a help could be better


def test_the_page_parses_and_our_own_names_follow_the_conventions(tmp_path):
    try:
        promtool = prometheus()["promtool"]
    except BinariesMissing as missing:
        pytest.skip(str(missing))
    everything = {one: "0.7" if one.endswith("Ratio") else 7 for one in Measure}
    parts = {"mig": [{"profile": "3g.40gb", "start": start} for start in (0, 4)]}
    gpus = [{"pci": "0000:01:00.0", "metering": everything, "health": {"xids": [{"code": 79}]}}]
    gpus.append({"pci": "0000:02:00.0", "metering": {**everything, "instance": everything}, **parts})
    document = {"about": "two", "driverVersion": "580.126.20", "gpuDefaults": {"model": "h100-sxm5-80gb"}, "gpus": gpus}
    with stage("1.35") as here:
        node = MeteredNode(here, tmp_path)
        (tmp_path / "profile.yaml").write_text(json.dumps(document))
        node.start("--telemetry=full", "--mig=static")
        node.until(lambda: len(here.devices()) == 3, "devices")
        node.run("web-0", "whole", next(one for one in here.devices() if one.startswith("gpu-0000-01")))
        node.until(lambda: node.scrape("dra_claim_sm_active_bucket"), "what the claim uses")
        node.until(lambda: node.scrape("dra_unclaimed_seconds_total"), "hours")
        with urllib.request.urlopen(f"http://127.0.0.1:{node.port}/metrics", timeout=5) as answer:
            assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
            page = answer.read()
    checked = subprocess.run([promtool, "check", "metrics"], check=False, input=page, capture_output=True, timeout=30)
    said = (checked.stdout + checked.stderr).decode()
    assert checked.returncode in {0, LINTED}, said
    complaints = [line for line in said.splitlines() if line and not line.startswith("DCGM_")]
    assert not [line for line in complaints if "camelCase" not in line], "promtool complains about a name of ours"
