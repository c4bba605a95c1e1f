"""Accessibility: axe-core finds no serious violation on any page, in light and dark."""

from __future__ import annotations

import pytest

RULES = "axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice']})"
PAGES = {
    "fleet": ".tile",
    "claims": ".filters",
    "playground": ".device",
    "health": ".card",
    "usage": ".canvas canvas",
    "what-if": "textarea",
}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_violation(open_console, axe, scheme, prometheus):
    page = open_console("--fleet", "demo-h100", "--prometheus", prometheus.url, scheme=scheme)
    page.wait_for_selector(".tile")
    page.locator(".tile").first.click()
    page.wait_for_selector('.panel h3:has-text("Attributes")')
    for name, seen in PAGES.items():
        page.evaluate(f"location.hash = '#/{name}'")
        page.wait_for_selector(seen)
        page.evaluate(axe)
        found = page.evaluate(RULES)["violations"]
        serious = [
            (one["id"], one["nodes"][0]["html"][:200], one["nodes"][0].get("failureSummary"))
            for one in found
            if one["impact"] in {"serious", "critical"}
        ]
        assert serious == [], name
