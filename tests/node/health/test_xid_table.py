import pytest

from dra_driver.node.health.xids import LAST_CODE, XidClass, row_of, table


@pytest.mark.parametrize("code", range(1, LAST_CODE + 1))
def test_every_code_has_a_class_and_a_source(code):
    row = table()[code]
    assert row.code == code
    assert row.source
    assert row.kind in XidClass


def test_each_code_is_in_one_section_only():
    from dra_driver.node.health.xids import _SECTIONS, _codes

    codes = [code for _, _, text, _ in _SECTIONS for code in _codes(text)]
    assert sorted(codes) == list(range(1, LAST_CODE + 1))


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (13, XidClass.APPLICATION),
        (31, XidClass.APPLICATION),
        (43, XidClass.INFORMATION),
        (45, XidClass.FOLLOW),
        (48, XidClass.RESET),
        (63, XidClass.INFORMATION),
        (64, XidClass.RESET),
        (74, XidClass.LINK),
        (79, XidClass.REBOOT),
        (94, XidClass.APPLICATION),
        (95, XidClass.RESET),
        (109, XidClass.RESET),
        (119, XidClass.RESET),
        (143, XidClass.RESET),
        (145, XidClass.LINK),
        (151, XidClass.REBOOT),
        (154, XidClass.FOLLOW),
    ],
)
def test_codes_of_the_catalogue_have_the_class_of_their_action(code, kind):
    assert row_of(code).kind is kind


def test_an_unknown_code_needs_support_and_is_not_harmless():
    assert row_of(4711).kind is XidClass.SUPPORT
    assert not row_of(4711).kind.is_harmless
