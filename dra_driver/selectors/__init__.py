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
    from dra_driver.selectors.kubernetes_engine import KubernetesSelector

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
    """Compile a selector as one Kubernetes version does.

    `gates` override that version's defaults. `environment` is "stored" for what the scheduler evaluates and "new" for
    what the API server accepts in a new or changed object; `admissible` of the result is always the server's verdict.

    Raises:
        SelectorCompileError: The expression does not compile.
    """
    from dra_driver.selectors.kubernetes_engine import KubernetesEngine  # noqa: PLC0415  (tables are loaded on first use)

    return KubernetesEngine(kubernetes, gates=gates).compile(expression, environment=environment)
