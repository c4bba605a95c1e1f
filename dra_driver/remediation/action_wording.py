"""Action wording: the texts for claims, processes and actions in Events and logs, and the reasons of the Events."""

from __future__ import annotations

from collections.abc import Sequence

from dra_driver.remediation.policy import RemediationAction

MAX_NAMED = 5  # claims or processes in one sentence
DRAIN, BLOCKED, GAVE_UP = "RemediationDrain", "RemediationBlocked", "RemediationEscalated"
RETURNED, ACTION = "RemediationReturned", "RemediationAction"
_PLURALS = {"claim": "claims", "process": "processes"}
_NOUNS = {"reset": "a reset", "reboot": "a reboot", "command": "the site's command", "none": "an examination"}
_VERBS = {"reset": "done", "reboot": "asked for", "command": "run"}


def listed(kind: str, names: Sequence[str]) -> str:
    """Return the names of claims or processes as a text; of many, only the first ones."""
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return f"{kind if len(names) == 1 else _PLURALS[kind]} {', '.join(names[:MAX_NAMED])}{more}"


def noun_of(action: RemediationAction) -> str:
    """Return the noun for an action, such as "a reset"."""
    return _NOUNS.get(str(action), "nothing")


def verb_of(action: RemediationAction) -> str:
    """Return the verb for an action that was carried out, such as "asked for" for a reboot."""
    return _VERBS.get(str(action), "done")
