"""How long each question may be worked on. The worker ends the work after that time, and the server stops waiting."""

from __future__ import annotations

QUICK_SECONDS = 0.9  # for questions whose answer the user waits for while typing
LONG_SECONDS = 20.0

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
