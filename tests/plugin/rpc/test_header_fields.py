"""Header fields as HPACK has them: the examples of its specification, and damaged blocks."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.plugin.rpc import huffman
from dra_driver.plugin.rpc.header_fields import FieldDecoder, literal

CODES = {
    character: format(first + place, f"0{length}b")
    for length, first, characters in huffman._CODES
    for place, character in enumerate(characters)
}
# RFC 7541, appendices C.3 and C.4: three requests on one connection, without and with compression.
PLAIN = (
    "828684410f7777772e6578616d706c652e636f6d",
    "828684be58086e6f2d6361636865",
    "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
)
COMPRESSED = (
    "828684418cf1e3c2e5f23a6ba0ab90f4ff",
    "828684be5886a8eb10649cbf",
    "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
)
# What Go's encoder writes for calls with a deadline: Prepare, repeated Prepare, Unprepare, and another Prepare.
KUBELET = (
    (
        "838645ad63abc85cc75fadb19682a57afaccb8eb321792c1afdc2bdfdb0eba2d98d531a4f2175d85ac761769507b6c21514186a0e41d139d09"
        "5f8b1d75d0620d263d4c4d65647a8b9acac8b4c7602bbafaecff40027465864d833505b11f40899acac8b24d494f6a7f8769a7df7df002df"
    ),
    "8386c3c2c1c0bf7e8769a7df7de7d9b7",
    (
        "838645af63abc85cc75fadb19682a57afaccb8eb321792c1afdc2bdfdb0eba2d98d531a4f2178555d85ac761769507b6c2151fc4c3c2c17f00"
        "8769a7df7de79cb7"
    ),
    "8386c6c5c4c3c27e8769a7df7de75fb7",
)
FIELDS = (
    [(b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"www.example.com")],
    [
        (b":method", b"GET"),
        (b":scheme", b"http"),
        (b":path", b"/"),
        (b":authority", b"www.example.com"),
        (b"cache-control", b"no-cache"),
    ],
    [
        (b":method", b"GET"),
        (b":scheme", b"https"),
        (b":path", b"/index.html"),
        (b":authority", b"www.example.com"),
        (b"custom-key", b"custom-value"),
    ],
)


@pytest.mark.parametrize("blocks", [PLAIN, COMPRESSED])
def test_the_examples_of_the_specification_are_read(blocks: tuple[str, ...]) -> None:
    decoder = FieldDecoder()
    assert [decoder.decode(bytes.fromhex(block)) for block in blocks] == list(FIELDS)


def test_what_is_written_in_full_is_read_again() -> None:
    for size in (0, 1, 126, 127, 128, 300, 5000):
        assert FieldDecoder().decode(literal(b"name", b"v" * size)) == [(b"name", b"v" * size)]


def test_the_same_block_means_something_else_after_a_field_was_kept() -> None:
    decoder = FieldDecoder()
    decoder.decode(b"\x40\x01n\x01a")
    assert decoder.decode(b"\xbe") == decoder.decode(b"\xbe") == [(b"n", b"a")]
    decoder.decode(b"\x40\x01n\x01b")
    assert decoder.decode(b"\xbe") == [(b"n", b"b")]
    assert decoder.decode(b"\xbf") == [(b"n", b"a")]
    decoder.decode(b"\x20")  # nothing is remembered any more
    with pytest.raises(ValueError, match="refer to a field"):
        decoder.decode(b"\xbe")


def test_old_fields_make_room_for_new_ones() -> None:
    decoder = FieldDecoder()
    for number in range(300):
        decoder.decode(b"\x40\x01n\x03%03d" % number)
    assert decoder.decode(b"\xbe") == [(b"n", b"299")]
    kept = 4096 // (1 + 3 + 32)
    assert decoder.decode(bytes((0xFF, 62 + kept - 1 - 127))) == [(b"n", b"%03d" % (300 - kept))]
    with pytest.raises(ValueError, match="refer to a field"):
        decoder.decode(bytes((0xFF, 62 + kept - 127)))
    assert decoder.decode(b"\x20") == [], "the client has emptied the table"
    with pytest.raises(ValueError, match="refer to a field"):
        decoder.decode(b"\xbe")


def test_damaged_blocks_are_read_or_refused_and_cause_no_other_error() -> None:
    chance = random.Random(7)
    for _ in range(5000):
        block = bytearray(bytes.fromhex(chance.choice(COMPRESSED + PLAIN)))
        for _ in range(chance.randint(1, 4)):
            block[chance.randrange(len(block))] = chance.randrange(256)
        try:
            FieldDecoder().decode(bytes(block[: chance.randint(1, len(block))]))
        except ValueError:
            continue


def test_every_character_has_a_code_of_its_own() -> None:
    codes = [(length, first + n) for length, first, characters in huffman._CODES for n in range(len(characters))]
    assert len(codes) == 257
    assert sum(2.0**-length for length, _ in codes) == 1.0, "the code is complete"


def _bits(text: bytes) -> str:
    """Return a text as it is compressed, with padding."""
    bits = "".join(CODES[one] for one in text)
    return bits + "1" * (-len(bits) % 8)


def test_every_character_is_read_at_every_place_of_a_byte() -> None:
    for character in range(256):
        for before in range(8):  # "0" has five bits, so the code begins at each of the eight places
            text = b"0" * before + bytes((character,)) + b"/"
            bits = _bits(text)
            assert huffman.decode(int(bits, 2).to_bytes(len(bits) // 8)) == text
            with pytest.raises(ValueError, match="padding"):
                huffman.decode(int(bits + "1" * 8, 2).to_bytes(len(bits) // 8 + 1))


@given(st.binary(min_size=100, max_size=400), st.integers(0, 80))
def test_a_text_of_many_pieces_is_read_wherever_a_code_crosses_from_one_to_the_next(text: bytes, before: int) -> None:
    bits = _bits(b"0" * before + text)
    assert huffman.decode(int(bits, 2).to_bytes(len(bits) // 8)) == b"0" * before + text


def test_the_blocks_of_a_kubelet_are_read_though_each_has_a_new_time_limit() -> None:
    decoder = FieldDecoder()
    for number, block in enumerate(KUBELET):
        method = b"NodeUnprepareResources" if number == 2 else b"NodePrepareResources"
        assert decoder.decode(bytes.fromhex(block)) == [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", b"/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/" + method),
            (b":authority", b"localhost"),
            (b"content-type", b"application/grpc"),
            (b"user-agent", b"grpc-go/1.79.3"),
            (b"te", b"trailers"),
            (b"grpc-timeout", b"%du" % (44999900 - 7 * number)),
        ]
