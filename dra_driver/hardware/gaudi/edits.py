"""Edits for containers with Gaudi accelerators: nodes, variables that name all of a claim's cards, and the hook.

In: facts and roots. Out: edits. A variable has one value for a claim, because two devices that each set it would
overwrite each other. The hook gives the cards' network interfaces to the container. Where its program is missing from
the host the hook is left out, because a container whose hook can't be run does not start.

Source: Intel's Gaudi DRA driver v0.7 and habana-container-runtime (nodes, variables, the hook's path).
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from dra_driver.hardware.gaudi.facts import GaudiCard
from dra_driver.hardware.node_edits import edits_of_nodes
from dra_driver.hardware.port import Roots
from dra_driver.model.edits import Edits, Hook, Mount, merge

_HOOKS = ("/usr/bin/habana-container-hook", "/usr/local/habana/bin/habana-container-hook")
_NETWORK = "/etc/habanalabs/gaudinet.json"


def device_edits(card: GaudiCard, roots: Roots) -> Edits:
    """Return the nodes of one card. Raises: HardwareError("hardware.node-missing", retry LATER)."""
    verbs = (f"infiniband/{card.verbs}",) if card.verbs else ()
    return edits_of_nodes((*card.nodes, *verbs), roots)


def claim_edits(cards: Sequence[GaudiCard], roots: Roots) -> Edits:
    """Return what all cards of a claim need together."""
    cards = sorted(cards, key=lambda card: card.minor)
    lists = {
        "HABANA_VISIBLE_DEVICES": [str(card.minor) for card in cards],
        "HABANA_VISIBLE_MODULES": [str(card.module_id) for card in cards],
        "HL_VISIBLE_DEVICES": [f"/dev/accel/accel{card.minor}" for card in cards],
    }
    env = tuple(f"{name}={','.join(values)}" for name, values in lists.items())
    hook = hook_path(roots)
    hooks = (Hook(hook, (hook,), name="createRuntime"),) if hook else ()
    mounts = (Mount(_NETWORK, _NETWORK),) if _is_on_host(_NETWORK, roots) else ()
    return merge((Edits(env=env, hooks=hooks, mounts=mounts),))


def hook_path(roots: Roots) -> str | None:
    """Return the path of the hook's program on the host, or None where there is none that can be run."""
    return next((path for path in _HOOKS if os.access(f"{roots.driver_mount.rstrip('/')}{path}", os.X_OK)), None)


def _is_on_host(path: str, roots: Roots) -> bool:
    return os.path.isfile(f"{roots.driver_mount.rstrip('/')}{path}")  # noqa: PTH113 - does not raise
