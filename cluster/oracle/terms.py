"""Terms of each type, and texts as users and hostile tenants write them: arguments of functions, regular expressions.

In: a source of randomness. Out: terms and literals of the language. Most of the texts are near the border between what
the server accepts and what it refuses.
"""

from __future__ import annotations

from random import Random

DOMAIN = 'device.attributes["dra.example.com"]'
OTHER_DOMAIN = 'device.attributes["other.example.com"]'
CAPACITY = 'device.capacity["dra.example.com"]'

# Terms of each type.
TERMS: dict[str, tuple[str, ...]] = {
    "bool": (
        "true",
        "false",
        "device.allowMultipleAllocations",
        f"has({DOMAIN}.int)",
        f"has({DOMAIN}.`int`)",
        "has(device.nothing)",
        '"string" in ' + DOMAIN,
    ),
    "int": ("0", "1", "2", "7", "-3", "9223372036854775807", "-9223372036854775808", "0x1F", "size(device.driver)"),
    "uint": ("0u", "1u", "18446744073709551615u"),
    "double": ("0.0", "1.5", "-2.25e3", "1e308", 'double("NaN")'),
    "string": ('""', '"fish"', '"a,b,c"', '"1.2.3"', '"40Gi"', '"größe"', "device.driver", "r'\\d+'", '"10.1.2.3"'),
    "bytes": ('b""', 'b"abc"', 'b"\\xff"'),
    "null": ("null",),
    "duration": ('duration("1h")', 'duration("0.5s")', 'duration("-3m")'),
    "timestamp": ('timestamp("2024-02-29T12:30:00Z")', "timestamp(0)"),
    "kubernetes.Quantity": (
        'quantity("1")',
        'quantity("1500m")',
        'quantity("40Gi")',
        'quantity("9223372036854775807")',
        f"{CAPACITY}.memory",
        f"{CAPACITY}.frac",
        f"{CAPACITY}.slots",
        f"{CAPACITY}.missing",
    ),
    "kubernetes.Semver": ('semver("1.2.3")', 'semver("0.9.0-rc.1+build5")', 'semver("v1.2", true)'),
    "kubernetes.URL": ('url("https://example.com:8443/p?q=1")', 'url("/only/path")'),
    "net.IP": ('ip("10.1.2.3")', 'ip("::1")'),
    "net.CIDR": ('cidr("10.0.0.0/8")', 'cidr("2001:db8::/32")'),
    "kubernetes.NamedFormat": ("format.dns1123Label()", "format.uuid()", "format.uri()"),
}

# Texts for the functions that read them in their own way.
_TIMES = (
    "2024-02-29T12:30:00.5Z",
    "2024-02-29T1:30:00Z",
    "2024-02-29T12:30:00,5+01:00",
    "2023-02-29T00:00:00Z",
    "2024-02-29T12:30:60Z",
    "0001-01-01T00:00:00Z",
    "9999-12-31T23:59:59-01:00",
    "2024-02-29t12:30:00z",
)
_ZONES = (
    "UTC",
    "Europe/Berlin",
    "+01:00",
    "-01:30",
    "+25:00",
    "99:-1",
    ":",
    "./UTC",
    "../etc",
    "Nowhere/Else",
    "Local",
)
_ADDRESSES = ("10.1.2.3", "01.2.3.4", "::ffff:1.2.3.4", "fe80::1%eth0", "1.2.3", "FE80::1", "1::2::3", "0.0.0.0")
_BLOCKS = ("10.0.0.0/8", "10.1.2.3/8", "::/0", "1.2.3.4/33", "1.2.3.4/08", "::ffff:1.2.3.4/96", "10.0.0.0")
_URLS = (
    "https://u:p@h:80/p?a=1&a=2#f",
    "http://h:80:90/",
    "http://[::1]:8/",
    "//h/p",
    "/p?a;b=1",
    "http://h/%zz",
    "a:b",
)
_AMOUNTS = ("1", "1.5Gi", "1e3", "1E", "0.1n", "-8Ei", "9223372036854775808", "1e-10", " 1", "1e3Ki", "+1", "5.")
_VERSIONS = ("1.2.3", "v1.2.3", "1.2", "01.2.3", "1.2.3-01", "1.0.0-rc.10", "1.2.3+b-1", "18446744073709551616.0.0")
_NUMBERS = ("1", "-1", "+1", "0x1", "1e3", "9223372036854775808", "inf", "NaN", "1_0", "t", "TRUE", "yes")
_SPANS = ("1h", "1h30m", "-1.5h", "+1s", "1d", ".5s", "1.s", "1µs", "2562047h47m16.854775808s", "0")
_FORMATS = ("%s", "%d", "%.3f", "%e", "%x", "%b", "%o", "%%", "%", "%5d", "%s %s", "%.1000f")
_POOLS = {
    **dict.fromkeys(("timestamp", "date", "datetime"), _TIMES),
    **dict.fromkeys(("ip", "isIP", "ip.isCanonical", "containsIP"), _ADDRESSES),
    **dict.fromkeys(("cidr", "isCIDR", "containsCIDR"), _BLOCKS),
    **dict.fromkeys(("url", "isURL", "validate"), _URLS),
    **dict.fromkeys(("quantity", "isQuantity"), _AMOUNTS),
    **dict.fromkeys(("semver", "isSemver"), _VERSIONS),
    **dict.fromkeys(("int", "uint", "double", "bool"), _NUMBERS),
    "duration": _SPANS,
    "format": _FORMATS,
}
_PATTERNS = frozenset({"matches", "find", "findAll"})
_ODD = (
    '"e\\u0301"',
    '"\\U0001F600"',
    '"a\\u0000b"',
    '"\\ufeff\\u00a0 x\\u2028"',
    '"\u017fKß"',
    "'''a\nb'''",
    '"\\x41\\101\\u0041"',
    'r"\\n"',
    '"\\ud800"',
    '"a\tb"',
)
_ATOMS = (
    "a",
    ".",
    "é",
    "\u017f",
    r"\d",
    r"\W",
    r"\b",
    "^",
    "$",
    r"\z",
    r"\pL",
    r"\p{Greek}",
    "[[:alpha:]]",
    r"\x{1F600}",
)
_REFUSED = (
    r"\1",
    r"\C",
    r"\Z",
    r"\8",
    "(?=a)",
    "(?<!a)",
    "(?>a)",
    "[z-a]",
    "[",
    ")",
    r"\u0041",
    "[[:foo:]]",
    r"\x{110000}",
)
_SETS = ("[a-z]", "[^a]", "[]a]", "[^\\W_]", "[\\pL\\d]", "[é-ÿ]", "[a\\-z]", "[\\x00-\\x{10ffff}]", "[a&&b]")
_OPENINGS = ("(", "(?:", "(?i:", "(?s:", "(?-i:", "(?P<n>", "(?<k>", "(?U:", "(?m:")
_REPEATS = (
    "",
    "",
    "",
    "*",
    "+?",
    "??",
    "{2}",
    "{2,}",
    "{0,1}",
    "{,2}",
    "{1001}",
    "{10000000000}",
    "**",
    "*+",
    "{2}{3}",
)


def odd_literal(random: Random) -> str:
    """Return a text literal with unusual characters or escapes."""
    return random.choice(_ODD)


def fitting_literal(random: Random, function: str) -> str | None:
    """Return a text that is nearly right for a function; None if the function reads its texts in no special way."""
    if function in _PATTERNS:
        return _quoted(_pattern(random, 2))
    pool = _ZONES if function.startswith("get") else _POOLS.get(function)
    return None if pool is None else _quoted(random.choice(pool))


def _pattern(random: Random, depth: int) -> str:
    return "".join(_piece(random, depth) + random.choice(_REPEATS) for _ in range(random.choice([1, 2, 2, 3])))


def _piece(random: Random, depth: int) -> str:
    kind = random.random()
    if kind < 0.03:
        return random.choice(_REFUSED)
    if kind < 0.6 or depth == 0:
        return random.choice(_ATOMS)
    if kind < 0.75:
        return random.choice(_SETS)
    if kind < 0.9:
        return f"{random.choice(_OPENINGS)}{_pattern(random, depth - 1)})"
    return f"({_pattern(random, depth - 1)}|{_pattern(random, depth - 1)})"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
