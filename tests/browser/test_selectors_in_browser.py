"""The playground in a browser: the selector that is typed is judged."""

from __future__ import annotations

FLEET = ("--fleet", "demo-h100")


def playground(page):
    page.wait_for_selector(".tile")
    page.keyboard.press("g")
    page.keyboard.press("s")
    page.wait_for_selector(".cm-content")
    return page


def typed(page, text):
    page.locator(".cm-content").click()
    page.keyboard.press("Control+A")
    page.keyboard.insert_text(text)


def test_a_selector_is_typed_and_its_verdict_changes(open_console):
    page = playground(open_console(*FLEET))
    typed(page, 'device.driver == "gpu.nvidia.com"')
    page.wait_for_selector('.outcome:has-text("14 match")')
    typed(page, 'device.driver == "dra.net"')
    page.wait_for_selector('.outcome:has-text("8 match")')
    assert page.locator(".device.match").count() == 8


def test_a_broken_selector_is_underlined_where_kubernetes_reports_the_error(open_console):
    page = playground(open_console(*FLEET))
    typed(page, "device.driver = 5")
    page.wait_for_selector(".cm-lintRange-error")
    page.wait_for_selector('.remarks:has-text("Syntax error")')


def test_a_fix_is_taken_with_one_click(open_console):
    page = playground(open_console(*FLEET))
    typed(page, 'device.attributes["gpu.nvidia.com"].type == "gpu"')
    page.wait_for_selector('.outcome:has-text("8 abort scheduling")')
    page.get_by_role("button", name="Fix").first.click()
    page.wait_for_selector('.outcome:has-text("6 match"):not(:has-text("abort"))')


def test_a_device_is_explained_and_the_address_leads_back_to_the_selector(open_console):
    page = playground(open_console(*FLEET))
    typed(page, 'device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].numaNode == 1')
    page.wait_for_selector('.outcome:has-text("10 match")')
    page.get_by_label("gpu-0000-1b-00-0: do not match").click()
    page.wait_for_selector(".tree .decides")
    assert "false" in page.locator(".tree").inner_text()
    address = page.url
    page.reload()
    page.wait_for_selector('.outcome:has-text("10 match")')
    assert page.url == address


def test_completion_offers_the_attributes_of_the_devices(open_console):
    page = playground(open_console(*FLEET))
    typed(page, 'device.attributes["gpu.nvidia.com"].')
    page.keyboard.type("arch")
    page.wait_for_selector('.cm-tooltip-autocomplete:has-text("architecture")')


def test_a_manifest_with_the_selector_is_copied(open_console):
    page = playground(open_console(*FLEET))
    typed(page, 'device.driver == "gpu.nvidia.com"')
    page.get_by_role("button", name="Copy as ResourceClaimTemplate").click()
    text = page.evaluate("navigator.clipboard.readText()")
    assert "kind: ResourceClaimTemplate" in text
    assert 'device.driver == "gpu.nvidia.com"' in text
