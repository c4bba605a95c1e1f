"""The README's links and flags. Its first screen is compared in `tests/cli/test_demo.py`, the figures nowhere."""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def test_links_of_the_readme_lead_somewhere():
    targets = re.findall(r"\]\(([^)#]+)\)", README.read_text())
    assert targets
    assert [t for t in targets if not (README.parent / t).exists()] == []


def test_the_agent_explains_its_flags():
    done = subprocess.run(
        [sys.executable, "-m", "dra_driver", "agent", "--help"], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0
    assert "NODE_NAME" in done.stdout
