"""A stand-in for Prometheus on a real socket, with the functions that the driver uses, over series that grow evenly."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from tests.support.metering.usage_week import BEGIN, Line

Row = tuple[dict[str, str], float]
_AGGREGATION = re.compile(r"(sum|max|count|group) by \(([^)]*)\) \((.*)\)")
_FUNCTION = re.compile(r"(\w+)\((\w+)(\{[^}]*\})?\[(\d+)s\]\)")
_PLAIN = re.compile(r"(\w+)(\{[^}]*\})?")
_OUTER: dict[str, Callable[[list[float]], float]] = {
    "sum": sum, "max": max, "count": lambda found: float(len(found)), "group": lambda _: 1.0,
}  # fmt: skip


class PrometheusDouble:
    """A server for /api/v1/query and /api/v1/query_range.

    `answer` replaces the computed body of a query; `asked` are the queries with their headers. Range queries are
    answered from `series`, which has values by namespace. A query for one series gets the first of `figures` whose key
    occurs in the query. A double with `born` has had `rates`, by their labels, since that moment and nothing before: it
    divides by the whole time that a rate looks back, as Prometheus does. A query for several metrics by their names
    gets those `readings` whose names are in it.
    """

    def __init__(self, lines: list[Line], begin: datetime = BEGIN) -> None:
        self.lines, self._begin = lines, begin
        self.series: dict[str, list[float]] = {}
        self.figures: dict[str, float] = {}
        self.born: datetime | None = None
        self.readings: list[Row] = []
        self.rates: dict[tuple[tuple[str, str], ...], float] = {}
        self.answer: bytes | None = None
        self.status = 200
        self.asked: list[tuple[str, dict[str, str]]] = []
        double = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                given = parse_qs(urlsplit(self.path).query)
                double.asked.append((given["query"][0], dict(self.headers)))
                is_range = urlsplit(self.path).path.endswith("query_range")
                body = double.answer
                if body is None:
                    body = double.range_body(given) if is_range else double.instant_body(given)
                self.send_response(double.status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def range_body(self, given: dict[str, list[str]]) -> bytes:
        start, step = float(given["start"][0]), float(given["step"][0])
        query = given["query"][0]
        if self.born is not None:
            return self._young_body(
                query, [start + step * at for at in range(int((float(given["end"][0]) - start) / step) + 1)]
            )
        figures = [value for word, value in self.figures.items() if word in query]
        series = self.series if " by (" in query or not figures else {"": [figures[0]] * 100}
        result = [
            {"metric": {"namespace": name}, "values": [[start + step * at, str(one)] for at, one in enumerate(values)]}
            for name, values in series.items()
        ]
        return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}}).encode()

    def _young_body(self, query: str, times: list[float]) -> bytes:
        assert self.born is not None
        born, back = self.born.timestamp(), float((re.findall(r"\[(\d+)s\]", query) or ["0"])[0])
        values = [(time, min(1.0, (time - born) / back) if back else 1.0) for time in times if time >= born]
        result = [
            {"metric": dict(labels), "values": [[time, str(rate * part)] for time, part in values]}
            for labels, rate in self.rates.items()
        ]
        return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}}).encode()

    def instant_body(self, given: dict[str, list[str]]) -> bytes:
        query, time = given["query"][0], given["time"][0]
        hour = (float(time) - self._begin.timestamp()) / 3600
        result = [{"metric": labels, "value": [float(time), str(value)]} for labels, value in self._rows(query, hour)]
        return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()

    def _rows(self, query: str, hour: float) -> list[Row]:
        if "__name__" in query:
            return [row for row in self.readings if row[0]["__name__"] in query]
        aggregated = _AGGREGATION.fullmatch(query)
        if aggregated is None:
            return self._of_function(query, hour)
        outer, labels, inner = aggregated.groups()
        names = [name.strip() for name in labels.split(",")]
        grouped: dict[tuple[tuple[str, str], ...], list[float]] = {}
        for found, value in self._rows(inner, hour):
            key = tuple((name, found[name]) for name in names if name in found)
            grouped.setdefault(key, []).append(value)
        return [(dict(key), _OUTER[outer](values)) for key, values in grouped.items()]

    def _of_function(self, query: str, hour: float) -> list[Row]:
        if matched := _FUNCTION.fullmatch(query):
            function, name, matcher, seconds = matched.groups()
            begin = hour - int(seconds) / 3600
            return [row for line in self._found(name, matcher) if (row := _over(function, line, begin, hour))]
        matched = _PLAIN.fullmatch(query)
        assert matched is not None, query
        rows = ((line.labels, line.at(hour)) for line in self._found(*matched.groups()))
        return [(labels, value) for labels, value in rows if value is not None]

    def _found(self, name: str, matcher: str | None) -> list[Line]:
        wanted = dict(re.findall(r'(\w+)="([^"]*)"', matcher or ""))
        return [line for line in self.lines if line.name == name and wanted.items() <= line.labels.items()]


def _over(function: str, line: Line, begin: float, end: float) -> Row | None:
    first, last = max(begin, line.first), min(end, line.last)
    if first > last:
        return None
    at_first, at_last = line.at(first), line.at(last)
    assert at_first is not None
    assert at_last is not None
    value = {"max_over_time": max(at_first, at_last), "increase": at_last - at_first, "resets": 0.0}[function]
    return line.labels, value
