"""What pages show while an answer is awaited, and what they do about impatient users."""

from __future__ import annotations

import re

from tests.browser.support.held_answers import HeldAnswers
from tests.browser.support.scene import write_scene

FLEET = ("--fleet", "demo-h100")


def test_each_page_says_that_it_waits_for_its_first_answer(open_console):
    page = open_console(*FLEET)
    page.wait_for_selector(".tile")
    held = HeldAnswers(page, re.compile("/api/v1/(claims|attention|offers|fleet)"))
    for name, words in (("claims", "Reading the claims"), ("health", "Reading the fleet"), ("usage", "Asking")):
        held.after(lambda name=name: page.evaluate(f"location.hash = '#/{name}'"))
        page.wait_for_selector(f'main:has-text("{words} …")')
    held.after(lambda: page.evaluate("location.hash = '#/fleet'"))
    page.wait_for_selector('.filters:has-text("Reading the fleet …")')
    held.release()
    page.wait_for_selector(".tile")
    assert "Reading" not in page.locator(".filters").inner_text()


def test_the_panel_never_shows_another_device_than_the_chosen_one(open_console):
    page = open_console(*FLEET)
    page.wait_for_selector(".tile")
    page.locator(".tile").nth(0).click()
    page.wait_for_selector('.panel h3:has-text("Attributes")')
    held = HeldAnswers(page, "**/api/v1/device?*")
    held.after(page.locator(".tile").nth(2).click)
    assert page.locator(".panel p").inner_text() == "Asking …"
    assert page.locator(".panel h2").inner_text() == page.locator(".tile").nth(2).get_attribute("data-device")
    held.release()
    page.wait_for_selector('.panel h3:has-text("Attributes")')


def test_the_panel_never_shows_another_claim_than_the_chosen_one(open_console, tmp_path):
    page = open_console("-f", write_scene(tmp_path))
    page.wait_for_selector(".tile")
    page.evaluate("location.hash = '#/claims'")
    page.locator('.claim:has-text("eight-gpus")').click()
    page.wait_for_selector(".panel .reasons")
    held = HeldAnswers(page, "**/api/v1/explanation?*")
    held.after(page.locator('.claim:has-text("next-replica")').click)
    assert page.locator(".panel p").inner_text() == "Asking …"
    assert page.locator(".panel h2").inner_text() == "claim team-serving/next-replica"
    held.release()
    page.wait_for_selector(".panel .reasons")


def test_a_filter_marks_the_old_rows_until_the_new_ones_are_here(open_console):
    page = open_console(*FLEET)
    page.wait_for_selector(".tile")
    held = HeldAnswers(page, "**/api/v1/fleet?name=other*")
    held.after(lambda: page.get_by_label("Filter by node").fill("other"))
    page.wait_for_selector('.map[aria-busy="true"]')
    held.release()
    page.wait_for_selector(".map:not([aria-busy])")
    assert page.locator(".row").count() == 0


def test_rows_that_are_scrolled_to_are_announced_while_they_are_loaded(open_console):
    page = open_console("--fleet", "dgx-h100=500")
    page.wait_for_selector(".tile")
    held = HeldAnswers(page, "**/api/v1/fleet?offset=*")
    held.after(lambda: page.evaluate("document.querySelector('.map').scrollTop = 20000"))
    page.wait_for_selector(".map.reading")
    held.release()
    page.wait_for_selector('.row[data-index="264"]')
    page.wait_for_selector(".map:not(.reading)")


def test_a_change_is_simulated_once_however_often_it_is_submitted(open_console):
    page = open_console(*FLEET)
    page.wait_for_selector(".tile")
    page.evaluate("location.hash = '#/what-if'")
    page.get_by_label("Nodes added").fill("dgx-h100")
    held = HeldAnswers(page, "**/api/v1/what-if")
    held.after(lambda: page.keyboard.press("Enter"))
    page.wait_for_selector('.verdicts:has-text("Simulating …")')
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Simulate").click(force=True)
    assert held.count() == 1
    held.release()
    page.wait_for_selector(".verdicts .message.good")
    assert page.get_by_role("button", name="Simulate").is_enabled()


def test_a_button_that_copies_has_its_label_again_after_two_clicks(open_console):
    page = open_console(*FLEET)
    page.wait_for_selector(".tile")
    page.evaluate("location.hash = '#/playground'")
    page.clock.install()
    button = page.locator('button:has-text("Copy as DeviceClass")').element_handle()
    for _ in range(2):
        button.click()
        page.wait_for_selector('button:has-text("Copied")')
    page.evaluate("navigator.clipboard.readText()")  # the second text is written before that is answered
    page.clock.run_for(2000)
    assert button.inner_text() == "Copy as DeviceClass"


def test_a_browser_without_a_clipboard_says_so(open_console):
    page = open_console(*FLEET)
    page.wait_for_selector(".tile")
    page.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    page.evaluate("location.hash = '#/playground'")
    page.get_by_role("button", name="Copy a link").click()
    page.wait_for_selector('button:has-text("The browser does not allow it")')
