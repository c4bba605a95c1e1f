"""What if, and health, in a browser."""

from __future__ import annotations

FLEET = ("--fleet", "demo-h100")


def test_a_change_is_played_with_the_keyboard_alone(open_console):
    page = open_console(*FLEET)
    page.wait_for_selector(".tile")
    page.keyboard.press("g")
    page.keyboard.press("w")
    page.wait_for_selector("textarea")
    page.get_by_label("Pods and claims, as YAML").focus()
    page.keyboard.press("Control+End")
    for _ in range(3):  # the count of the example stands at its end
        page.keyboard.press("Backspace")
    page.keyboard.type(" 7")
    page.keyboard.press("Tab")
    page.keyboard.type("dgx-h100")
    page.keyboard.press("Enter")
    page.wait_for_selector('.message:has-text("would no longer wait")')
    page.keyboard.press("Control+A")
    page.keyboard.type("nonsense")
    page.keyboard.press("Enter")
    page.wait_for_selector('.message.bad:has-text("no profile")')


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
