"""The cards of partitions: DRM nodes of platform devices beside those of the GPU."""

from __future__ import annotations

from pathlib import Path

from dra_driver.hardware.drm import read_drm
from dra_driver.hardware.pci import entries_of
from dra_driver.hardware.port import Roots


def read_partition_cards(roots: Roots) -> dict[int, str]:
    """Return the card of each partition's render node, by minor.

    Partitions are platform devices; kernels before 2024 write amdgpu_xcp.3, newer ones amdgpu_xcp_3.
    """
    folder = Path(roots.sys, "devices/platform")
    cards = {}
    for name in entries_of(folder):
        if name.startswith(("amdgpu_xcp.", "amdgpu_xcp_")):
            drm = read_drm(folder / name / "drm")
            if drm.render_minor is not None and drm.card is not None:
                cards[drm.render_minor] = drm.card
    return cards
