"""Exposition: lines of the text format."""

from prometheus_client.parser import text_string_to_metric_families

from dra_driver.base.telemetry.metrics import join_families
from dra_driver.hardware.metered import FamilyHead, SampleKind, labels_text, sample_line

HOURS = FamilyHead("hours_total", SampleKind.COUNTER, "Hours.")
AGE = FamilyHead("age", SampleKind.GAUGE, "Age.")


def page(*rows):
    lines = []
    for head, labels in rows:
        lines += [*head.lines(), sample_line(head.name, labels_text(labels.items()), 1.0)]
    return "".join(f"{line}\n" for line in lines).encode()


def test_texts_are_joined_so_that_each_family_appears_once():
    first = page((HOURS, {"driver": "a"}), (AGE, {"text": 'x\n# HELP age of "# HELP hours_total'}))
    found = join_families([first, b"", page((AGE, {"driver": "b"}), (HOURS, {"driver": "b"}))]).decode()
    assert found.count("# TYPE hours_total") == found.count("# TYPE age ") == 1
    families = {one.name: one for one in text_string_to_metric_families(found)}
    assert [one.labels for one in families["hours"].samples] == [{"driver": "a"}, {"driver": "b"}]
    assert [one.labels.get("driver") for one in families["age"].samples] == [None, "b"]
    assert families["age"].samples[0].labels["text"] == 'x\n# HELP age of "# HELP hours_total'


def test_empty_texts_join_to_an_empty_text():
    assert join_families([b"", b""]) == b""
