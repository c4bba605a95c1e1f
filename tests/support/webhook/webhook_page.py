"""docs/webhook.md in parts: its files, and what it shows of kubectl."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = (Path(__file__).parents[3] / "docs" / "webhook.md").read_text(encoding="utf-8")
FILES: dict[str, str] = dict(re.findall(r"<!-- file: (\S+) -->\n```yaml\n(.*?)```", PAGE, re.DOTALL))


def shown(name: str, number: int = 0) -> list[str]:
    """Return the lines that kubectl prints for a file, the `number`-th time that the page applies it."""
    found = re.findall(rf"\$ kubectl apply -f {re.escape(name)}\n(.*?)```", PAGE, re.DOTALL)
    return str(found[number]).splitlines()
