"""The pages about health agree with the code."""

from pathlib import Path

from dra_driver.hardware.simulated.profile import load_profile
from dra_driver.node.health.faults import DEFAULT_RULES, FaultKey
from dra_driver.node.health.policy_files import read_health_policy
from dra_driver.node.health.xids import page

DOCS = Path(__file__).parents[3] / "docs"


def test_the_page_of_xids_is_the_table():
    assert (DOCS / "xids.md").read_text() == page(), "run make docs"


def test_every_key_has_a_row_with_its_default_effect():
    table = (DOCS / "health.md").read_text().partition("| Key | Value |")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.split("|")] for line in table.splitlines() if line.startswith("| `")]
    effects = {row[1].strip("`"): row[4] for row in rows}
    assert set(effects) == set(FaultKey)
    for key, effect in effects.items():
        assert effect.startswith(DEFAULT_RULES[FaultKey(key)].effect), key


def test_the_policy_on_the_page_is_valid(tmp_path):
    text = (DOCS / "health.md").read_text().partition("```yaml\n")[2].partition("```")[0]
    path = tmp_path / "health.yaml"
    path.write_text(text)
    assert read_health_policy(path).ignored_xids == {92}


def test_each_health_example_on_the_page_is_valid_in_a_profile(tmp_path):
    section = (DOCS / "health.md").read_text().partition("## Try it without a GPU")[2]
    found = [part for line in section.splitlines() for part in line.split("`") if part.startswith("{")]
    assert len(found) > 12
    for number, health in enumerate(found):
        path = tmp_path / f"p{number}.yaml"
        path.write_text(f'about: x\ngpus:\n  - {{pci: "0000:1b:00.0", model: l40s, health: {health}}}\n')
        assert load_profile(path).gpus[0].health
