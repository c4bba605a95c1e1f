"""The kernels that the test runs, in PTX, and what they compute, in Python.

The PTX version and target are low, so that every driver which still supports a GPU compiles them for it.
Source: NVIDIA's PTX ISA reference (forward compatibility of PTX).
"""

from __future__ import annotations

from array import array

MASK = 0xFFFFFFFF
FACTOR = 0x9E3779B1  # odd, so that different words stay different
MIX, FILL, CHECK = b"dra_mix", b"dra_fill", b"dra_check"

PTX = b"""
.version 6.0
.target sm_50
.address_size 64

// data[i] = (data[i] ^ seed) * FACTOR + i
.visible .entry dra_mix(.param .u64 data, .param .u32 count, .param .u32 seed)
{
    .reg .pred %p<2>;
    .reg .b32 %r<10>;
    .reg .b64 %d<5>;
    ld.param.u64 %d1, [data];
    ld.param.u32 %r1, [count];
    ld.param.u32 %r2, [seed];
    cvta.to.global.u64 %d2, %d1;
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mov.u32 %r5, %tid.x;
    mad.lo.u32 %r6, %r3, %r4, %r5;
    setp.ge.u32 %p1, %r6, %r1;
    @%p1 bra DONE;
    mul.wide.u32 %d3, %r6, 4;
    add.u64 %d4, %d2, %d3;
    ld.global.u32 %r7, [%d4];
    xor.b32 %r8, %r7, %r2;
    mad.lo.u32 %r9, %r8, 0x9E3779B1, %r6;
    st.global.u32 [%d4], %r9;
DONE:
    ret;
}

// data[i] = word(first + i), with word(n) = ((low(n) + high(n) * FACTOR) * FACTOR) ^ seed
.visible .entry dra_fill(.param .u64 data, .param .u64 words, .param .u64 first, .param .u32 seed)
{
    .reg .pred %p<2>;
    .reg .b32 %r<12>;
    .reg .b64 %d<12>;
    ld.param.u64 %d1, [data];
    ld.param.u64 %d2, [words];
    ld.param.u64 %d3, [first];
    ld.param.u32 %r1, [seed];
    cvta.to.global.u64 %d4, %d1;
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mov.u32 %r5, %nctaid.x;
    mad.lo.u32 %r6, %r2, %r3, %r4;
    cvt.u64.u32 %d5, %r6;
    mul.wide.u32 %d6, %r5, %r3;
NEXT:
    setp.ge.u64 %p1, %d5, %d2;
    @%p1 bra DONE;
    add.u64 %d7, %d5, %d3;
    cvt.u32.u64 %r7, %d7;
    shr.u64 %d8, %d7, 32;
    cvt.u32.u64 %r8, %d8;
    mad.lo.u32 %r9, %r8, 0x9E3779B1, %r7;
    mul.lo.u32 %r10, %r9, 0x9E3779B1;
    xor.b32 %r11, %r10, %r1;
    shl.b64 %d9, %d5, 2;
    add.u64 %d10, %d4, %d9;
    st.global.u32 [%d10], %r11;
    add.u64 %d5, %d5, %d6;
    bra NEXT;
DONE:
    ret;
}

// counter += how many data[i] differ from word(first + i)
.visible .entry dra_check(.param .u64 data, .param .u64 words, .param .u64 first, .param .u32 seed,
                          .param .u64 counter)
{
    .reg .pred %p<3>;
    .reg .b32 %r<13>;
    .reg .b64 %d<14>;
    ld.param.u64 %d1, [data];
    ld.param.u64 %d2, [words];
    ld.param.u64 %d3, [first];
    ld.param.u32 %r1, [seed];
    ld.param.u64 %d11, [counter];
    cvta.to.global.u64 %d4, %d1;
    cvta.to.global.u64 %d12, %d11;
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mov.u32 %r5, %nctaid.x;
    mad.lo.u32 %r6, %r2, %r3, %r4;
    cvt.u64.u32 %d5, %r6;
    mul.wide.u32 %d6, %r5, %r3;
NEXT:
    setp.ge.u64 %p1, %d5, %d2;
    @%p1 bra DONE;
    add.u64 %d7, %d5, %d3;
    cvt.u32.u64 %r7, %d7;
    shr.u64 %d8, %d7, 32;
    cvt.u32.u64 %r8, %d8;
    mad.lo.u32 %r9, %r8, 0x9E3779B1, %r7;
    mul.lo.u32 %r10, %r9, 0x9E3779B1;
    xor.b32 %r11, %r10, %r1;
    shl.b64 %d9, %d5, 2;
    add.u64 %d10, %d4, %d9;
    ld.global.u32 %r12, [%d10];
    add.u64 %d5, %d5, %d6;
    setp.eq.u32 %p2, %r12, %r11;
    @%p2 bra NEXT;
    red.global.add.u32 [%d12], 1;
    bra NEXT;
DONE:
    ret;
}
\0"""


def mixed(words: array[int], seed: int) -> array[int]:
    """Return what `dra_mix` makes of these 32-bit words."""
    return array(words.typecode, (((word ^ seed) * FACTOR + index) & MASK for index, word in enumerate(words)))
