"""What if, and health, in a browser."""

from __future__ import annotations

import pytest

FLEET = ("--fleet", "demo-h100")


def test_a_change_is_simulated_with_the_keyboard_alone(open_console):
    page = open_console(*FLEET)
    page.wait_for_selector(".tile")
    page.keyboard.press("g")
    page.keyboard.press("w")
    page.wait_for_selector("textarea")
    page.get_by_label("Pods and claims, as YAML").focus()
    page.keyboard.press("Control+End")
    for _ in range(3):  # the example ends with the count
        page.keyboard.press("Backspace")
    page.keyboard.type(" 7")
    page.keyboard.press("Tab")  # past the field of existing claims
    page.keyboard.press("Tab")
    page.keyboard.type("dgx-h100")
    page.keyboard.press("Enter")
    page.wait_for_selector('.message:has-text("would no longer wait")')
    page.keyboard.press("Control+A")
    page.keyboard.type("nonsense")
    page.keyboard.press("Enter")
    page.wait_for_selector('.message.bad:has-text("neither a profile")')


def test_health_says_that_nothing_deserves_attention(open_console):
    page = open_console(*FLEET)
    page.wait_for_selector(".tile")
    page.keyboard.press("g")
    page.keyboard.press("h")
    page.wait_for_selector('.good:has-text("Nothing deserves attention")')


def test_the_keys_are_listed_and_the_theme_is_kept(open_console):
    page = open_console(*FLEET)
    page.wait_for_selector(".tile")
    page.keyboard.press("?")
    page.wait_for_selector("dialog[open]")
    page.keyboard.press("Escape")
    page.locator("#theme").click()
    page.locator("#theme").click()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.reload()
    page.wait_for_selector(".tile")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_repartitioned_gpus_and_copies_of_a_claim_are_simulated(open_console, tmp_path):
    from tests.browser.support.scene import write_scene

    page = open_console("-f", write_scene(tmp_path))
    page.wait_for_selector(".tile")
    page.evaluate("location.hash = '#/claims'")
    page.locator('.claim:has-text("train-3")').first.click()
    page.get_by_role("link", name="What if another one arrives").click()
    page.wait_for_selector('.compared tr:has-text("train-3-copy-1")')
    page.get_by_label("GPUs partitioned or shared in another way").fill("l40s-1=shares:4")
    page.get_by_role("button", name="Simulate").click()
    page.wait_for_selector(".compared")
    page.locator("summary", has_text="Event by event").click()
    page.wait_for_selector('.both .card:has-text("the GPUs of l40s-1 become shares:4")')
    page.get_by_label("GPUs partitioned or shared in another way").fill("l40s-1=all-1g.10gb")
    page.keyboard.press("Enter")
    page.wait_for_selector('.message.bad:has-text("L40S")')


def test_pods_that_wait_make_no_good_message(open_console, tmp_path):
    from tests.browser.support.scene import write_scene

    page = open_console("-f", write_scene(tmp_path))
    page.wait_for_selector(".tile")
    page.evaluate("location.hash = '#/what-if?added=dgx-h100%3D1'")
    verdict = page.locator(".message[role=status]")
    verdict.wait_for()
    assert verdict.inner_text() == (
        "With the change, team-research/eight-gpus would no longer wait; team-serving/next-replica would still wait."
    )
    assert "good" not in verdict.get_attribute("class").split()
    rows = [" ".join(row.split()) for row in page.locator(".compared tbody tr").all_inner_texts()]
    assert rows[0].startswith("team-research/eight-gpus waits ✓ dgx-h100-5, 8 devices before: fits on none of 10 nodes")
    assert rows[1].startswith("team-serving/next-replica waits waits fits on none of 11 nodes")
    assert rows[2].startswith("default/two-gpus ✓")


@pytest.mark.parametrize("width", [390, 480])
def test_every_page_fits_a_narrow_window(open_console, width):
    page = open_console("--fleet", "demo-h100", width=width)
    page.wait_for_selector(".tile")
    for name in ("fleet", "claims", "playground", "health", "usage", "what-if"):
        page.evaluate(f"location.hash = '#/{name}'")
        page.wait_for_selector(f"main.page-{name} > *")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        assert page.get_by_role("link", name="What if", exact=True).is_visible()
        assert page.evaluate("document.querySelector('.bar').offsetHeight") <= 50, "the header has several rows"
