"""Files that people write: all mistakes at once, in plain words, whatever a file contains."""

import time
from typing import Annotated, Literal

import pytest
from pydantic import Field, ValidationError

from dra_driver.base.errors import InputError
from dra_driver.base.text.sections import MAX_FAULTS, MAX_LISTED, Section, Text, fault, read_strictly, seconds


class Wheel(Section):
    size: int = Field(ge=1, le=9)
    spare: bool = False


class Car(Section):
    version: Literal["car/v1"]
    owner_name: Text = "nobody"
    wheels: list[Wheel] = Field(default=[], max_length=4)
    doors: dict[str, int] = Field(default={})
    service: Annotated[float, seconds(60, 3600)] = 60
    engine: Wheel | None = None

    def combined_faults(self):
        if "engine" in self._given and self.owner_name == "nobody":
            yield fault("has an engine and no owner", "engine")
        if self.doors.get("left", 0) > 1:
            yield fault("a side has one door", "doors", "left")


@pytest.fixture
def faults_of(tmp_path):
    def faults(text):
        (tmp_path / "car.yaml").write_text(text)
        with pytest.raises(InputError) as caught:
            read_strictly(tmp_path / "car.yaml", Car, "profile", "car")
        assert caught.value.code == "input.profile"
        return caught.value.message.split("\n  ")[1:]

    return faults


def test_a_file_is_read_by_the_names_that_people_write_and_null_is_not_given(tmp_path):
    (tmp_path / "car.yaml").write_text("version: car/v1\nownerName: ann\nservice: 2m\nengine: null\nwheels: null\n")
    car = read_strictly(tmp_path / "car.yaml", Car, "profile", "car")
    assert (car.owner_name, car.service, car.engine, car.wheels) == ("ann", 120, None, [])


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "document: expected named fields, got nothing"),
        ("[]", "line 1: document: expected named fields, got a list"),
        ("ownerName: ann", "line 1: version: missing, expected 'car/v1'"),
        ("version: [car/v1]", "line 1: version: expected 'car/v1', got a list"),
        ("version: car/v1\nownerName: 5", "line 2: ownerName: expected a string, got 5"),
        ("version: car/v1\nownerName: ''", "line 2: ownerName: expected a string, got ''"),
        ("version: car/v1\nowner_name: x", "line 2: owner_name: unknown field (known here: doors, engine, ownerName"),
        ("version: car/v1\nx: null", "line 2: x: unknown field"),
        ("version: car/v1\nwheels: {}", "line 2: wheels: expected a list, got named fields"),
        ("version: car/v1\nwheels: [{size: '1'}]", "wheels[0].size: expected a whole number from 1 to 9, got '1'"),
        ("version: car/v1\nwheels: [{size: true}]", "wheels[0].size: expected a whole number from 1 to 9, got true"),
        ("version: car/v1\nwheels: [{size: 1, spare: 1}]", "wheels[0].spare: expected true or false, got 1"),
        ("version: car/v1\nwheels: [{}]", "wheels[0].size: missing, expected a whole number from 1 to 9"),
        ("version: car/v1\nwheels: [1, 1, 1, 1, 1]", "wheels: 5 entries, at most 4 are allowed"),
        ("version: car/v1\nservice: 1", "service: expected a duration such as 90s, 10m, 24h or 7d, got 1"),
        ("version: car/v1\nservice: 1d", "service: must be from 60s to 3600s"),
        ("version: car/v1\ndoors: {left: two}", "doors.left: expected a whole number, got 'two'"),
        ('version: car/v1\n"\\e[2J": 1', r"line 2: '\x1b[2J': unknown field"),
        (f"version: car/v1\n? {'k' * 900}\n: 1", f"{'k' * 99}…: unknown field"),
        (f"version: car/v1\nwheels: {'k' * 900}", f"expected a list, got '{'k' * 63}…'"),
    ],
)
def test_a_mistake_says_where_it_is_what_was_expected_and_what_was_found(faults_of, text, fault):
    (found,) = faults_of(text)
    assert fault in found


def test_mistakes_of_fields_hide_neither_each_other_nor_those_that_fields_have_together(faults_of):
    assert faults_of("""\
version: car/v2
wheels:
- {size: 0}
- {spare: maybe}
engine: {}
doors: {left: 2, right: many}
extra: 1
""") == [
        "line 1: version: expected 'car/v1', got 'car/v2'",
        "line 3: wheels[0].size: expected a whole number from 1 to 9, got 0",
        "line 4: wheels[1].size: missing, expected a whole number from 1 to 9",
        "line 4: wheels[1].spare: expected true or false, got 'maybe'",
        "line 5: engine.size: missing, expected a whole number from 1 to 9",
        "line 5: engine: has an engine and no owner",
        "line 6: doors.right: expected a whole number, got 'many'",
        "line 6: doors.left: a side has one door",
        "line 7: extra: unknown field (known here: doors, engine, ownerName, service, version, wheels)",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "version: car/v1\n" + "".join(f"k{n}: 1\n" for n in range(10_000)),
        "version: car/v1\ndoors: {" + ", ".join(f"k{n}: x" for n in range(10_000)) + "}",
    ],
    ids=["unknown fields", "wrong values"],
)
def test_of_ten_thousand_mistakes_the_first_are_listed_in_a_short_time(faults_of, text):
    began = time.process_time()
    found = faults_of(text)
    assert time.process_time() - began < 20
    assert (len(found), found[-1]) == (MAX_LISTED + 1, "…")
    assert sum(map(len, found)) < 200 * len(found)


def test_the_number_of_mistakes_is_exact_up_to_a_limit(tmp_path):
    with pytest.raises(ValidationError) as caught:
        Car.model_validate({"version": "car/v1", **{f"k{n}": 1 for n in range(10_000)}})
    assert caught.value.error_count() == MAX_FAULTS + 1, "time and memory are spent on mistakes that nobody reads"
    for number, said in ((60, "has 60 mistakes"), (2 * MAX_FAULTS, f"has more than {MAX_FAULTS} mistakes")):
        (tmp_path / "car.yaml").write_text("version: car/v1\n" + "".join(f"k{n}: 1\n" for n in range(number)))
        with pytest.raises(InputError, match=said):
            read_strictly(tmp_path / "car.yaml", Car, "profile", "car")
