"""The rules that the chart installs."""

from pathlib import Path

import yaml

from tests.support.chart import ROOT

RULES = ROOT / "deploy" / "rules"

FILES = sorted(RULES.glob("*.rules.yaml"))


def rules(file: Path) -> list[dict]:
    return [rule for group in yaml.safe_load(file.read_text())["groups"] for rule in group["rules"]]


ALL = [rule for file in FILES for rule in rules(file)]

RECORDED = {rule["record"] for rule in ALL if "record" in rule}
