"""The README's links and flags, and the rooms that CONTRIBUTING names.

The README's first screen is compared in `tests/tools/test_demo.py`. Not covered: its figures.
"""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def test_links_of_the_readme_exist():
    targets = re.findall(r"\]\(([^)#]+)\)", README.read_text())
    assert targets
    assert [t for t in targets if not (README.parent / t).exists()] == []


def test_the_help_of_the_agent_lists_environment_variables():
    done = subprocess.run(
        [sys.executable, "-m", "dra_driver", "agent", "--help"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0
    assert "NODE_NAME" in done.stdout


def test_the_contributors_table_names_existing_modules_and_rooms():
    root = README.parent
    text = (root / "CONTRIBUTING.md").read_text().partition("\n## Change\n")[2].partition("\n## ")[0]
    table = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(table) <= 1 + 20, "folders say by their names what they do"
    named = [word for line in table for word in re.findall(r"`([a-z_./-]+)`", line.split("|")[2])]
    places = [word for word in named if "/" in word or word.endswith(".py")]
    assert len(places) > 20

    def is_there(place: str) -> bool:
        rooms = (root / "dra_driver", root / "deploy")
        return (root / place).exists() or any(any(room.rglob(place.rstrip("/"))) for room in rooms)

    assert [place for place in places if not is_there(place)] == []
