"""Decoding of request bodies: everything that an API server sends is decoded, within bounds of memory and time."""

from __future__ import annotations

import json

import pytest

from dra_driver.base.errors import InputError
from dra_driver.tools.webhook.handler import MAX_LEVELS, MAX_VALUES, TOO_DEEP, TooManyValuesError, decode


def deep(levels, opening="[", closing="]"):
    return opening * levels + closing * levels


@pytest.mark.parametrize("levels", [MAX_LEVELS, 5_000, 60_000])
def test_a_value_that_is_too_deep_is_cut_off_and_the_rest_is_kept(levels):
    nested = '{"k":' * levels + "1" + "}" * levels
    made = decode(f'{{"a":{deep(levels)},"b":{nested},"c":1}}'.encode())
    assert made["c"] == 1
    inner, depth = made["a"], 1
    while isinstance(inner, list) and inner:
        inner, depth = inner[0], depth + 1
    assert depth <= MAX_LEVELS + 1
    assert inner in ([], TOO_DEEP)


def test_brackets_in_texts_do_not_count_as_levels():
    text = '[{"\\' * 40_000
    assert decode(json.dumps({"a": text, "b": deep(50)}).encode())["a"] == text


def test_an_incomplete_body_is_refused():
    with pytest.raises(InputError, match="it is incomplete"):
        decode(b"[" * 100_000)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-16-le"])
def test_only_utf_8_is_read(encoding):
    with pytest.raises(InputError, match="not an AdmissionReview"):
        decode(json.dumps({"a": 1}).encode(encoding))


def test_numbers_of_any_length_are_decoded():
    made = decode(b'{"a": %s, "b": -%s, "c": %s, "d": NaN}' % (b"9" * 50_000, b"9" * 50_000, b"9" * 4_000))
    assert made["a"] == float("inf")
    assert made["b"] == float("-inf")
    assert made["c"] == 10**4_000 - 1


def test_the_last_of_equal_names_counts_and_half_a_surrogate_pair_is_kept():
    assert decode(b'{"a": 1, "a": "\\ud800"}') == {"a": "\ud800"}


@pytest.mark.parametrize("values", ["[],", "{},", '"ab",', "1,", '"a","[",'])
def test_a_body_with_more_values_than_any_valid_object_is_refused_with_its_uid(values):
    body = '{"request": {"uid": "u-7", "x": [' + values * MAX_VALUES + "1]}}"
    with pytest.raises(TooManyValuesError) as caught:
        decode(body.encode())
    assert caught.value.uid == "u-7"


def test_commas_in_texts_do_not_count_as_values():
    text = ",[{" * MAX_VALUES
    assert decode(json.dumps([text]).encode()) == [text]
