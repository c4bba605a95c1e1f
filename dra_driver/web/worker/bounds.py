"""How long each question may be worked on, and which ones take much memory.

The worker ends the work after that time, and the server stops waiting.
"""

from __future__ import annotations

QUICK_SECONDS = 0.9  # for questions whose answer the user waits for while typing
LONG_SECONDS = 20.0

HEAVY = frozenset({"what-if", "explanation"})  # they simulate the scheduler with copies of the board's objects

SECONDS: dict[str, float] = {
    "summary": LONG_SECONDS,
    "attention": LONG_SECONDS,
    "fleet": QUICK_SECONDS,
    "device": QUICK_SECONDS,
    "claims": LONG_SECONDS,
    "claim": QUICK_SECONDS,
    "explanation": LONG_SECONDS,
    "what-if": LONG_SECONDS,
    "selector": QUICK_SECONDS,
    "selector/explain": QUICK_SECONDS,
    "selector/completions": QUICK_SECONDS,
}
