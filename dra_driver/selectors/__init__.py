"""CEL selectors with the verdicts of the Kubernetes scheduler and API server.

    from dra_driver.selectors import compile_selector

    selector = compile_selector('device.attributes["gpu.example.com"].model == "H100"')
    selector.output_type, selector.max_cost, selector.admissible
    selector.matches(device, driver="gpu.example.com")   # device: a resource.k8s.io/v1 Device as a plain dict

In: CEL text and devices as wire dicts. Out: verdicts, compile errors with Kubernetes' wording, cost estimates, and
the tree of values behind a verdict. It reads no cluster and no files but its own tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dra_driver.selectors.engine import (
    CompileErrorKind,
    Engine,
    Environment,
    Selector,
    SelectorCompileError,
    SelectorRuntimeError,
)

if TYPE_CHECKING:
    from dra_driver.selectors.kubernetes import KubernetesSelector

__all__ = [
    "CompileErrorKind",
    "Engine",
    "Environment",
    "Selector",
    "SelectorCompileError",
    "SelectorRuntimeError",
    "compile_selector",
]


def compile_selector(
    expression: str,
    *,
    kubernetes: str = "1.35",
    gates: Mapping[str, bool] | None = None,
    environment: Environment = "stored",
) -> KubernetesSelector:
    """Compile a selector by the rules of one Kubernetes version.

    Args:
        expression: the CEL text.
        kubernetes: the minor version, such as "1.35".
        gates: feature gates that override the defaults of that version.
        environment: "stored" compiles what the scheduler evaluates, "new" what the API server accepts in a new or
            changed object. `admissible` of the result is the API server's verdict in either case.

    Raises:
        SelectorCompileError: The expression does not compile.
        InputError: The version is not known.
    """
    from dra_driver.selectors.kubernetes import KubernetesEngine  # noqa: PLC0415  (tables are loaded on first use)

    return KubernetesEngine(kubernetes, gates=gates).compile(expression, environment=environment)
