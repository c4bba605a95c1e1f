"""The map of the fleet in a browser."""

from __future__ import annotations

import re

FLEET = ("--fleet", "demo-h100")


def test_the_token_is_removed_from_the_address_and_the_fleet_is_drawn(open_console):
    page = open_console(*FLEET)
    page.wait_for_selector(".tile")
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/(#.*)?", page.url)
    assert page.locator(".row").count() == 1
    assert page.locator(".tile:not(.other)").count() == 8
    assert page.locator(".tile.other").count() == 8, "the network cards"
    page.wait_for_selector('#source:has-text("demo-h100 · Kubernetes 1.35")')
    assert page.evaluate("document.cookie") == "", "scripts can read the session's cookie"


def test_a_device_is_opened_with_the_keyboard_alone(open_console):
    page = open_console(*FLEET)
    page.wait_for_selector('.tile[tabindex="0"]')
    page.locator('.tile[tabindex="0"]').focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.wait_for_selector('.panel h3:has-text("Attributes")')
    assert page.locator(".panel h2").inner_text() == "gpu-0000-43-00-0"
    assert "Hopper" in page.locator(".panel").inner_text()
    page.keyboard.press("Escape")
    page.wait_for_selector(".panel", state="hidden")


def test_a_selector_in_the_filter_dims_devices_that_do_not_match(open_console):
    page = open_console(*FLEET)
    page.wait_for_selector(".tile")
    page.get_by_label("Filter by selector").fill('"numaNode" in device.attributes["gpu.nvidia.com"]')
    page.wait_for_selector(".part.dim")
    page.get_by_label("Filter by selector").fill("nonsense(")
    page.wait_for_selector('.message.bad:has-text("does not compile")')


def test_ten_thousand_nodes_are_scrolled_with_a_bounded_number_of_elements(open_console):
    page = open_console("--fleet", "dgx-h100=10000")
    page.wait_for_selector(".tile")
    page.wait_for_selector('.map .all[style*="height: 760000px"]')
    for top in (0, 300_000, 759_000):
        page.evaluate(f"document.querySelector('.map').scrollTop = {top}")
        first = top // 76
        page.wait_for_selector(f'.row[data-index="{first}"]')
        assert page.evaluate("document.querySelectorAll('*').length") < 2500
    assert page.locator('.row[data-index="9999"] b').inner_text() == "dgx-h100-10000"


def test_tiles_and_the_panel_show_what_a_gpu_does_where_it_is_measured(open_console, prometheus):
    labels = {"Hostname": "demo-node", "pci_bus_id": "00000000:43:00.0"}
    values = {"GPU_UTIL": 74.0, "FB_USED": 40960.0, "GPU_TEMP": 61.0, "POWER_USAGE": 412.0}
    prometheus.readings = [({"__name__": f"DCGM_FI_DEV_{name}", **labels}, value) for name, value in values.items()]
    page = open_console(*FLEET, "--prometheus", prometheus.url)
    page.wait_for_selector('.tile[data-device="gpu-0000-43-00-0"] .busy i[style*="74%"]')
    assert page.locator(".tile .busy").count() == 1, "a GPU without a reading shows one"
    page.locator('.tile[data-device="gpu-0000-43-00-0"]').click()
    page.wait_for_selector('.panel .now dd:has-text("412 W")')
    shown = " ".join(page.locator(".panel .now").inner_text().split())
    assert shown == "Now busy 74 % memory used 40 GiB temperature 61 °C power 412 W"
    assert "busy 74 %" in page.locator('.tile[data-device="gpu-0000-43-00-0"]').get_attribute("aria-label")
