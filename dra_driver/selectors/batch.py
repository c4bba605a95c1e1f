"""The batch check, for other programs: one JSON object comes in, one goes out.

In: a line of `dra-driver cel batch` as a dict, and the defaults from a first line that has no `expression`.
Out: the verdict as a dict. The command itself reads and writes the lines.

Source: the fields of the batch format (`docs/selectors.md`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dra_driver.model.errors import InputError
from dra_driver.selectors.engine import SelectorCompileError, SelectorRuntimeError
from dra_driver.selectors.evaluation.device_view import DeviceView, prepare_device
from dra_driver.selectors.kubernetes_engine import KubernetesEngine
from dra_driver.selectors.kubernetes_selector import KubernetesSelector

_FIELDS: dict[str, tuple[type | tuple[type, ...], Any]] = {
    "driver": (str, ""),
    "devices": (list, []),
    "kubernetes": (str, "1.35"),
    "gates": (dict, {}),
    "environment": (str, "stored"),
}


def has_defaults(line: Mapping[str, Any]) -> bool:
    """Return whether a first line sets defaults for the others, and is not an answerable line with a mistake."""
    return "expression" not in line and "id" not in line and not line.keys().isdisjoint(_FIELDS)


class BatchChecker:
    """Checks lines that share defaults. The devices of the defaults are converted only once."""

    def __init__(self, defaults: Mapping[str, Any]) -> None:
        self._defaults = defaults
        self._views: dict[tuple[int, str], tuple[Any, list[DeviceView]]] = {}
        self._engines: dict[Any, KubernetesEngine] = {}

    def check(self, line: Mapping[str, Any]) -> dict[str, Any]:
        """Check one line.

        Raises:
            InputError: The line does not follow the format.
        """
        expression = line.get("expression")
        if not isinstance(expression, str):
            raise InputError("batch", "expression must be a string")
        driver, devices, kubernetes, gates, environment = (self._field(line, name) for name in _FIELDS)
        if environment not in {"stored", "new"}:
            raise InputError("batch", "environment must be stored or new")
        engine = self._engine(kubernetes, gates)
        verdict: dict[str, Any] = {
            "id": line.get("id"),
            "compileError": None,
            "kind": None,
            "type": None,
            "maxCost": None,
            "admissible": engine.is_admissible(expression),
            "results": [],
        }
        try:
            selector = engine.compile(expression, environment=environment)
        except SelectorCompileError as error:
            return {**verdict, "compileError": error.text, "kind": str(error.kind)}
        results = [_result(selector, view) for view in self._prepared(devices, driver)]
        return {**verdict, "type": selector.output_type, "maxCost": selector.max_cost, "results": results}

    def _field(self, line: Mapping[str, Any], name: str) -> Any:
        kind, default = _FIELDS[name]
        value = line.get(name, self._defaults.get(name, default))
        if not isinstance(value, kind):
            raise InputError("batch", f"{name} has the wrong type")
        return value

    def _engine(self, kubernetes: str, gates: dict[str, Any]) -> KubernetesEngine:
        if not all(isinstance(on, bool) for on in gates.values()):
            raise InputError("batch", "gates must be true or false")
        key = kubernetes, tuple(sorted(gates.items()))
        engine = self._engines.get(key)
        if engine is None:
            engine = self._engines[key] = KubernetesEngine(kubernetes, gates=gates)
        return engine

    def _prepared(self, devices: list[Any], driver: str) -> list[DeviceView]:
        if devices is not self._defaults.get("devices"):
            return _convert(devices, driver)
        key = id(devices), driver
        known = self._views.get(key)
        if known is None:
            known = self._views[key] = devices, _convert(devices, driver)
        return known[1]


def check_batch_line(line: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Check one line with its defaults. Use one `BatchChecker` for many lines: it does shared work only once.

    Raises:
        InputError: The line does not follow the format.
    """
    return BatchChecker(defaults).check(line)


def _convert(devices: list[Any], driver: str) -> list[DeviceView]:
    if not all(isinstance(device, dict) for device in devices):
        raise InputError("batch", "devices must be objects")
    return [prepare_device(device, driver) for device in devices]


def _result(selector: KubernetesSelector, view: DeviceView) -> dict[str, Any]:
    try:
        return {"match": selector.matches_view(view)}
    except SelectorRuntimeError as error:
        return {"error": error.text}
