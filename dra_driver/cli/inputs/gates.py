"""Feature gates as commands are given them: NAME=BOOL, one in an option or several between commas.

In: the rows, the version whose rules apply, and the gates that the command depends on. Out: what to override.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches

from dra_driver.model.errors import UsageError
from dra_driver.model.kubernetes import FEATURE_GATES, minor_of


def read_gates(rows: Iterable[str], kubernetes: str, *, known: Collection[str], asker: str) -> dict[str, bool]:
    """Read NAME=BOOL rows; `asker` is what depends on the `known` gates, for people. Raises: UsageError."""
    gates: dict[str, bool] = {}
    for one in (part.strip() for row in rows for part in row.split(",")):
        name, _, value = one.partition("=")
        if value.lower() not in {"true", "false"}:
            raise UsageError("gate", f"--gate {one!r} is not NAME=true or NAME=false")
        if name not in known:
            raise UsageError("gate", f"--gate {name}: no {asker} depends on this gate", hint=nearest(name, known))
        since = FEATURE_GATES[name].since
        if value.lower() == "true" and since > minor_of(kubernetes) > 0:
            raise UsageError("gate", f"--gate {name}: Kubernetes knows it since 1.{since}, not in {kubernetes}")
        gates[name] = value.lower() == "true"
    return gates


def nearest(name: str, known: Collection[str]) -> str:
    """Return a hint for a gate that is not known: the name that was probably meant, else all names."""
    near = get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
