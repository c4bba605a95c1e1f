import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_driver.base.errors import InputError
from dra_driver.base.text.yaml_values import MAX_SIZE, line_of, read_document


@pytest.fixture
def read(tmp_path):
    def read_text(text: str | bytes):
        path = tmp_path / "profile.yaml"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return read_document(path)

    return read_text


@pytest.mark.parametrize(
    "text", ["0000:07:00.0", "1e3", "0x10", "010", "2026-11-20", "yes", "No", "13.0", "1_000", "<<", "NaN", "9" * 40]
)
def test_what_yaml_would_turn_into_numbers_or_dates_stays_text(read, text):
    assert read(f"value: {text}") == {"value": text}


@pytest.mark.parametrize(
    ("text", "value"),
    [("7", 7), ("-7", -7), ("0", 0), ("true", True), ("false", False), ("null", None), ("~", None), ("", None)],
)
def test_integers_booleans_and_null_are_read(read, text, value):
    assert read(f"value: {text}") == {"value": value}


def test_a_second_document_is_named_as_the_fault(read):
    with pytest.raises(InputError, match="it has more than one document"):
        read("a: b\n---\nc: d\n")


def test_a_name_given_twice_is_refused_with_its_line(read):
    with pytest.raises(InputError, match=r":3:3 .*'pci' is given twice") as caught:
        read("gpu:\n  pci: a\n  pci: b\n")
    assert caught.value.code == "input.not-yaml"


@pytest.mark.parametrize(
    "text",
    [
        "a: [",
        "a: !!python/object/apply:os.getpid []",
        "? [1, 2]\n: 3",
        b"\xff\xfe\x00",
        "a: b\n---\nc: d",
        "[" * 100_000,
    ],
)
def test_what_is_not_plain_yaml_is_bad_input(read, text):
    with pytest.raises(InputError) as caught:
        read(text)
    assert caught.value.code == "input.not-yaml"


def test_a_file_that_is_too_large_is_not_parsed(read):
    with pytest.raises(InputError) as caught:
        read("#" * (MAX_SIZE + 1))
    assert caught.value.code == "input.too-large"


def test_a_missing_file_is_bad_input(tmp_path):
    with pytest.raises(InputError, match="No such file") as caught:
        read_document(tmp_path / "absent.yaml")
    assert caught.value.code == "input.unreadable"


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.text(alphabet=st.characters(codec="ascii", categories=["L", "N", "P"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abcdef", min_size=1), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None)
@given(plain)
def test_plain_values_come_back_as_they_were_written(tmp_path_factory, value):
    path = tmp_path_factory.mktemp("documents") / "any.yaml"
    path.write_text(yaml.safe_dump(value))
    assert read_document(path) == value


def test_a_fault_has_its_line_or_that_of_the_nearest_field_around_it(tmp_path):
    path, lines = tmp_path / "rules.yaml", {}
    path.write_text("a: 1\nrules:\n  - name: x\n    match:\n      nodes: [1, 2]\n")
    read_document(path, lines)
    assert line_of("rules[0].match.nodes", lines) == 5
    assert line_of("rules[0].match.other", lines) == 4
    assert line_of("elsewhere", lines) == 1


def test_lines_of_aliases_that_multiply_are_limited_in_number(tmp_path):
    path, lines = tmp_path / "laughs.yaml", {}
    path.write_text(
        "a: &a [1]\n"
        + "".join(f"b{n}: &b{n} [*{x}, *{x}, *{x}]\n" for n, x in enumerate(["a", *[f"b{i}" for i in range(40)]]))
    )
    read_document(path, lines)
    assert len(lines) < 500
