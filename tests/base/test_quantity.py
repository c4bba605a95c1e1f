"""Quantities: what parses, how it prints, how it compares. Not covered: CEL's view of them (tests/selectors)."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.base.quantity import Format, Quantity, QuantityError


@pytest.mark.parametrize(
    ("text", "value", "canonical"),
    [
        ("40Gi", 40 * 2**30, "40Gi"),
        ("1500m", Fraction(3, 2), "1500m"),
        ("1000m", 1, "1"),
        ("10240Mi", 10 * 2**30, "10Gi"),
        ("0.5Gi", 2**29, "512Mi"),
        ("1.5k", 1500, "1500"),
        ("1e3", 1000, "1e3"),
        ("123E4", 1_230_000, "1230e3"),
        ("1E", 10**18, "1E"),
        ("512", 512, "512"),
        ("-0.5Mi", -(2**19), "-512Ki"),
        ("0.3Ki", Fraction(3072, 10), "307200m"),
        (".5", Fraction(1, 2), "500m"),
        ("5.", 5, "5"),
        ("007", 7, "7"),
        ("-", 0, "0"),
        ("16106127360", 16106127360, "16106127360"),
        ("0.0000000001", Fraction(1, 10**9), "1n"),
        ("100Ei", 2**63 - 1, "9223372036854775807"),
    ],
)
def test_a_quantity_has_the_servers_value_and_canonical_form(text, value, canonical):
    quantity = Quantity.parse(text)
    assert quantity.value == value
    assert str(quantity) == canonical
    assert Quantity.parse(canonical) == quantity


@pytest.mark.parametrize(
    "text", ["", " 5", "5 Gi", "abc", "1.2.3", "1Kii", "1e", "0x10", "1ki", "--1", "1e99999999999999999999"]
)
def test_what_is_no_quantity_is_refused_with_a_stable_code(text):
    with pytest.raises(QuantityError) as caught:
        Quantity.parse(text)
    assert caught.value.code.startswith("input.quantity.")


def test_an_enormous_exponent_compares_at_once_and_is_never_written_out():
    huge, tiny = Quantity.parse("1e999999999"), Quantity.parse("1e-999999999")
    assert huge > tiny > Quantity.parse("0")
    assert huge == Quantity.parse("10e999999998")
    with pytest.raises(QuantityError):
        _ = huge.value
    with pytest.raises(QuantityError):
        huge.add(Quantity.parse("1"))


def test_only_forms_that_the_server_keeps_as_integers_count_as_integers():
    assert Quantity.parse("1.5k").as_int64() == 1500
    assert Quantity.parse("1.0").as_int64() is None
    assert Quantity.parse("1000m").as_int64() is None
    assert Quantity.parse("1Ei").as_int64() is None
    assert Quantity.parse("9223372036854775807").add(Quantity.of(1)).as_int64() is None


def test_a_sum_keeps_the_format_of_the_first_unless_that_is_zero():
    assert str(Quantity.parse("1Gi").add(Quantity.parse("1Gi"))) == "2Gi"
    assert str(Quantity.parse("0").add(Quantity.parse("1Gi"))) == "1Gi"
    assert str(Quantity.of(2048, binary=True)) == "2Ki"
    assert Quantity.parse("1Gi").format is Format.BINARY_SI


_TEXTS = st.from_regex(r"\A[+-]?[0-9]{1,12}(\.[0-9]{0,6})?(|[num]|[kMGTPE]|[KMGTPE]i|e-?[0-9]{1,2})\Z")


@given(_TEXTS)
def test_printing_and_reading_again_changes_nothing(text):
    quantity = Quantity.parse(text)
    again = Quantity.parse(str(quantity))
    assert again == quantity
    assert str(again) == str(quantity)
    assert hash(again) == hash(quantity)


@given(_TEXTS, _TEXTS)
def test_order_and_sums_are_those_of_the_exact_values(left, right):
    a, b = Quantity.parse(left), Quantity.parse(right)
    assert (a < b) == (a.value < b.value)
    assert (a == b) == (a.value == b.value)
    assert a.add(b).value == a.value + b.value
    assert a.sub(b).value == a.value - b.value


def _read(text):
    try:
        return str(Quantity.parse(text))
    except QuantityError as error:
        return error.message


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused(text):
    assert _read(text)


def test_a_long_run_of_digits_is_refused_in_one_pass():
    with pytest.raises(QuantityError):
        Quantity.parse("0" * 50_000 + "1" * 50_000 + "x")
