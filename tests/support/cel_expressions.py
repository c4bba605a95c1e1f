"""Random selectors for property tests: mostly well-typed, over every library, sometimes nonsense."""

from __future__ import annotations

import random

A = 'device.attributes["dra.example.com"]'
C = 'device.capacity["dra.example.com"]'
ATTRIBUTES = ["bool", "int", "neg", "string", "version", "csv", "empty", "uni", "model", "ip", "url", "missing"]
CAPACITIES = ["memory", "slots", "frac", "missing"]

DEVICES = [
    {
        "name": "full",
        "allowMultipleAllocations": True,
        "attributes": {
            "bool": {"bool": True},
            "int": {"int": 7},
            "neg": {"int": -3},
            "string": {"string": "fish"},
            "version": {"version": "1.2.3"},
            "model": {"string": "NVIDIA H100 80GB HBM3"},
            "csv": {"string": "a,b,c"},
            "empty": {"string": ""},
            "uni": {"string": "größe"},
            "ip": {"string": "10.1.2.3"},
            "url": {"string": "https://example.com:8443/p?q=1"},
            "other.example.com/name": {"string": "x"},
        },
        "capacity": {"memory": {"value": "40Gi"}, "slots": {"value": "7"}, "frac": {"value": "1500m"}},
    },
    {
        "name": "wrong",
        "attributes": {
            "bool": {"string": "true"},
            "int": {"string": "7"},
            "string": {"int": 1},
            "model": {"bool": False},
        },
    },
    {"name": "bare"},
]


class Generator:
    """Builds expressions of a wanted type from one source of randomness."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.names: list[tuple[str, str]] = []

    def of(self, kind: str, depth: int = 4) -> str:
        """Make an expression of a type: bool, int, string, list, map, quantity, semver, any."""
        local = [name for name, have in self.names if have == kind]
        if local and self.rng.random() < 0.4:
            return self.rng.choice(local)
        if kind != "any" and self.rng.random() < 0.05:
            return self.of("any", depth - 1)
        return str(getattr(self, f"_{kind}")(depth - 1))

    def _pick(self, depth: int, leaves: list, branches: list) -> str:
        options = leaves if depth <= 0 else leaves + branches * 3
        return self.rng.choice(options)()

    def _any(self, _: int) -> str:
        name = self.rng.choice(ATTRIBUTES)
        return self.rng.choice([f"{A}.{name}", f'{A}["{name}"]', f"{A}.?{name}.orValue(1)", f'dyn("{name}")'])

    def _bool(self, d: int) -> str:
        of = self.of
        return self._pick(
            d,
            [lambda: "true", lambda: "false", lambda: f"{A}.bool", lambda: f"has({A}.{self.rng.choice(ATTRIBUTES)})"],
            [
                lambda: f"({of('bool', d)} && {of('bool', d)})",
                lambda: f"({of('bool', d)} || {of('bool', d)})",
                lambda: f"!({of('bool', d)})",
                lambda: f"({of('int', d)} {self.rng.choice(['<', '<=', '>', '>=', '==', '!='])} {of('int', d)})",
                lambda: f"({of('string', d)} {self.rng.choice(['<', '==', '!='])} {of('string', d)})",
                lambda: f"({of('any', d)} {self.rng.choice(['==', '!=', '<'])} {of('any', d)})",
                lambda: (
                    f"{of('string', d)}.{self.rng.choice(['startsWith', 'endsWith', 'contains'])}({of('string', d)})"
                ),
                lambda: f"{of('string', d)}.matches('[a-f]+')",
                lambda: f"({of('int', d)} in {of('list', d)})",
                lambda: f"({of('any', d)} in [1, 2, 7])",
                lambda: f"({of('string', d)} in {of('map', d)})",
                lambda: f"({of('list', d)} == {of('list', d)})",
                lambda: f"({of('map', d)} == {of('map', d)})",
                lambda: f"{of('quantity', d)}.isGreaterThan({of('quantity', d)})",
                lambda: f"({of('quantity', d)} == {of('quantity', d)})",
                lambda: f"{of('semver', d)}.isLessThan({of('semver', d)})",
                lambda: self._loop(d, self.rng.choice(["all", "exists", "exists_one"]), "bool"),
                lambda: self._loop(d, self.rng.choice(["all", "exists", "existsOne"]), "bool", pairs=True),
                lambda: self._bind(d, "bool"),
                lambda: f"({of('bool', d)} ? {of('bool', d)} : {of('bool', d)})",
                lambda: f"{A}.?{self.rng.choice(ATTRIBUTES)}.hasValue()",
                lambda: f"{A}.?{self.rng.choice(ATTRIBUTES)}.optMap(o, {of('bool', d)}).orValue({of('bool', d)})",
                lambda: f"sets.contains({of('list', d)}, {of('list', d)})",
                lambda: f"format.dns1123Label().validate({of('string', d)}).hasValue()",
                lambda: f"isIP({of('string', d)})",
                lambda: f"(type({of('any', d)}) == string)",
            ],
        )

    def _int(self, d: int) -> str:
        of = self.of
        return self._pick(
            d,
            [lambda: str(self.rng.choice([-1, 0, 1, 2, 7, 9223372036854775807])), lambda: f"{A}.int"],
            [
                lambda: f"({of('int', d)} {self.rng.choice(['+', '-', '*', '/', '%'])} {of('int', d)})",
                lambda: f"{of(self.rng.choice(['string', 'list', 'map']), d)}.size()",
                lambda: f"{of('list', d)}.{self.rng.choice(['sum', 'min', 'max'])}()",
                lambda: f"{of('list', d)}[{of('int', d)}]",
                lambda: f"{of('string', d)}.{self.rng.choice(['indexOf', 'lastIndexOf'])}({of('string', d)})",
                lambda: f"{of('quantity', d)}.compareTo({of('quantity', d)})",
                lambda: f"{of('semver', d)}.{self.rng.choice(['major', 'minor', 'patch'])}()",
                lambda: f"int({of('string', d)})",
                lambda: self._bind(d, "int"),
                lambda: f"({of('bool', d)} ? {of('int', d)} : {of('int', d)})",
                lambda: f"{of('list', d)}.first().orValue({of('int', d)})",
                lambda: f"-({of('int', d)})",
            ],
        )

    def _string(self, d: int) -> str:
        of = self.of
        return self._pick(
            d,
            [
                lambda: self.rng.choice(['"fish"', '""', '"a,b"', '"größe"', "'x'"]),
                lambda: f"{A}.{self.rng.choice(['string', 'model', 'csv', 'uni'])}",
                lambda: "device.driver",
            ],
            [
                lambda: f"({of('string', d)} + {of('string', d)})",
                lambda: f"{of('string', d)}.{self.rng.choice(['lowerAscii', 'upperAscii', 'trim'])}()",
                lambda: f"{of('string', d)}.substring({of('int', d)})",
                lambda: f"{of('string', d)}.replace({of('string', d)}, {of('string', d)})",
                lambda: f"{of('string', d)}.split(',').join('-')",
                lambda: f"{of('string', d)}.find('[a-z]+')",
                lambda: f"'%s-%d'.format([{of('string', d)}, {of('int', d)}])",
                lambda: f"string({of('int', d)})",
                lambda: f"{of('string', d)}.charAt({of('int', d)})",
            ],
        )

    def _list(self, d: int) -> str:
        of = self.of
        return self._pick(
            d,
            [lambda: "[1, 2, 3]", lambda: "[]", lambda: "[7]"],
            [
                lambda: f"[{of('int', d)}, {of('int', d)}]",
                lambda: f"({of('list', d)} + {of('list', d)})",
                lambda: self._loop(d, "map", "int"),
                lambda: self._loop(d, "filter", "bool"),
                lambda: self._loop(d, "transformList", "int", pairs=True),
                lambda: f"{of('list', d)}.{self.rng.choice(['reverse', 'sort', 'distinct'])}()",
                lambda: f"{of('list', d)}.slice({of('int', d)}, {of('int', d)})",
                lambda: f"lists.range({of('int', 0)})",
                lambda: f"[{of('list', d)}, {of('list', d)}].flatten()",
                lambda: f"[?{A}.?int, 2]",
                lambda: f"{of('list', d)}.sortBy(s, -s)",
            ],
        )

    def _map(self, d: int) -> str:
        of = self.of
        return self._pick(
            d,
            [lambda: '{"a": 1, "b": 2}', lambda: "{}"],
            [
                lambda: f"{{{of('string', d)}: {of('int', d)}}}",
                lambda: f"{of('map', d)}.transformMap(k, v, {of('int', d)})",
            ],
        )

    def _quantity(self, d: int) -> str:
        of = self.of
        return self._pick(
            d,
            [
                lambda: f"{C}.{self.rng.choice(CAPACITIES)}",
                lambda: f'quantity("{self.rng.choice(["1", "1Gi", "1500m", "x", "1e3"])}")',
            ],
            [lambda: f"{of('quantity', d)}.{self.rng.choice(['add', 'sub'])}({of('quantity', d)})"],
        )

    def _semver(self, _: int) -> str:
        return self.rng.choice([f"{A}.version", 'semver("1.0.0")', 'semver("v1", true)', 'semver("bad")'])

    def _loop(self, d: int, macro: str, body: str, *, pairs: bool = False) -> str:
        holder, kind = (self.of("list", d), "int") if self.rng.random() < 0.7 else (self.of("map", d), "string")
        names = [("i", kind), ("e", "int")] if pairs else [("e", kind)]
        self.names += names
        inside = self.of(body, d)
        del self.names[-len(names) :]
        return f"{holder}.{macro}({', '.join(name for name, _ in names)}, {inside})"

    def _bind(self, d: int, body: str) -> str:
        kind = self.rng.choice(["int", "string", "list", "any"])
        init = self.of(kind, d)
        self.names.append(("b", kind))
        inside = self.of(body, d)
        self.names.pop()
        return f"cel.bind(b, {init}, {inside})"


def expression(seed: int, depth: int = 5) -> str:
    """Return the selector of a seed; equal seeds give equal selectors."""
    return Generator(random.Random(seed)).of("bool", depth)
