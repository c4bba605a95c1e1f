"""The kernel log as a source of Xids, from a plain file of records."""

import pytest

from dra_driver.hardware.nvidia.health import KernelLog

GPU = "0000:3b:00.0"


class Log:
    def __init__(self, folder):
        self.path, self.sequence = folder / "kmsg", 100

    def write(self, text, *, prefix=4, ending="\n"):
        self.sequence += 1
        with self.path.open("a") as file:
            file.write(f"{prefix},{self.sequence},{self.sequence * 1000},-;{text}{ending}")


@pytest.fixture
def log(tmp_path):
    return Log(tmp_path)


def codes(news):
    return [(xid.gpu, xid.code, xid.gi_id, xid.ci_id) for xid in news.xids]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus.", (79, None, None)),
        (
            "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            (79, None, None),
        ),
        ("NVRM: Xid (0000:3b:00): 31, Ch 00000010, engmask 00000101", (31, None, None)),
        ("NVRM: Xid (PCI:0000:3B:00 GPU-I:05): 94, pid=7, name=x, Contained", (94, 5, None)),
        ("NVRM: Xid (PCI:0000:3b:00 GPU-I:05 GPU-CI:01): 13, Graphics Exception", (13, 5, 1)),
        ("NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 to 0x1", (154, None, None)),
        ("NVRM: Xid (PCI:0000:3b:00): 48", (48, None, None)),
        ("NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.", (79, None, None)),
        ("NVRM: GPU at PCI:0000:3b:00: GPU has fallen off the bus.", (79, None, None)),
    ],
)
def test_lines_of_the_driver_are_understood(log, text, expected):
    log.write(text)
    assert codes(KernelLog(log.path, -1).new_records()) == [(GPU, *expected)]


@pytest.mark.parametrize(
    ("text", "prefix"),
    [
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=x", 12),  # facility 1: a user wrote it
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=x", 8),
        ("nasty: NVRM: Xid (PCI:0000:3b:00): 79, pid=1", 4),
        (" NVRM: Xid (PCI:0000:3b:00): 79, pid=1", 4),
        ("NVRM: Xid (PCI:0000:3b:00 ): 79", 4),
        ("NVRM: Xid (PCI:zzzz:3b:00): 79", 4),
        ("NVRM: Xid (PCI:0000:3b:00): 79abc", 4),
        ("NVRM: Xid (PCI:0000:3b:00): -79", 4),
        ("NVRM: Xid (PCI:0000:3b:00): 123456, x", 4),
        ("audit: comm=NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.", 4),
        ("oom: process NVRM: fallen off the bus", 4),
    ],
)
def test_lines_of_other_writers_give_no_xid(log, text, prefix):
    log.write(text, prefix=prefix)
    assert codes(KernelLog(log.path, -1).new_records()) == []


def test_a_process_that_is_named_like_an_xid_gives_no_further_xid(log):
    log.write("NVRM: Xid (PCI:0000:3b:00): 31, pid=9, name=): 79, pid=1, name=NVRM: Xid (PCI:0000:43:00): 79, x")
    assert codes(KernelLog(log.path, -1).new_records()) == [(GPU, 31, None, None)]


def test_a_gpu_that_falls_off_the_bus_is_reported_once_though_the_driver_logs_it_twice(log):
    log.write("NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
    log.write("NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.")
    log.write("NVRM: GPU 0000:43:00.0: GPU has fallen off the bus.")
    assert codes(KernelLog(log.path, -1).new_records()) == [(GPU, 79, None, None), ("0000:43:00.0", 79, None, None)]


def test_three_lines_in_one_record_report_a_lost_gpu(log):
    log.write(
        r"NVRM: The NVIDIA GPU 0000:3b:00.0\x0aNVRM: (PCI ID: 10de:2330) installed in this system has\x0a"
        r"NVRM: fallen off the bus and is not responding to commands."
    )
    assert codes(KernelLog(log.path, -1).new_records()) == [(GPU, 79, None, None)]


@pytest.mark.parametrize(
    "text",
    [
        "NVRM: Xid (PCI:00000000:3B:00): 48, pid=2147483647, name=(((a))), DBE (double bit error) (cont. (1))",
        "NVRM: Xid (PCI:0000:3b:00): 48, pid=7, name=" + "x" * 1000,
        "NVRM: Xid (PCI:0000:3b:00): 48, pid=<unknown>, name=<unknown>, An uncorrectable double bit error",
        "NVRM: Xid (PCI:0000:3b:00): 48, pid=7, name=python3, Ch 00000008, intr 10000000. MMU Fault\\x0afaulted @ 0x7f",
    ],
)
def test_whatever_follows_the_code_does_not_matter(log, text):
    log.write(text)
    assert codes(KernelLog(log.path, -1).new_records()) == [(GPU, 48, None, None)]


def test_a_log_whose_numbers_begin_again_is_another_log(log):
    log.write("NVRM: Xid (PCI:0000:3b:00): 48")
    reader = KernelLog(log.path, -1)
    reader.new_records()
    log.path.rename(log.path.with_name("old"))
    log.sequence = 3
    log.write("NVRM: Xid (PCI:0000:3b:00): 62")
    reader.new_records()
    assert codes(reader.new_records()) == [(GPU, 62, None, None)]
    assert codes(KernelLog(log.path, 9999).new_records()) == [(GPU, 62, None, None)]


def test_what_is_added_to_a_plain_file_counts_whatever_its_number(log):
    log.write("NVRM: Xid (PCI:0000:3b:00): 48")
    reader = KernelLog(log.path, -1)
    reader.new_records()
    log.sequence -= 1
    log.write("NVRM: Xid (PCI:0000:3b:00): 62")
    assert codes(reader.new_records()) == [(GPU, 62, None, None)]


def test_a_file_that_is_no_kernel_log_is_a_problem(log):
    log.path.write_text("[   12.3] NVRM: Xid (PCI:0000:3b:00): 79, pid=1\n" * 3)
    reader = KernelLog(log.path, -1)
    assert reader.new_records().xids == ()
    assert "no records of /dev/kmsg" in reader.problem
    log.write("usb 1-1: new device")
    reader.new_records()
    assert reader.problem == ""


def test_lines_without_the_head_of_a_record_give_no_xid(log):
    log.path.write_text(
        "NVRM: Xid (PCI:0000:3b:00): 79, pid=1\n SUBSYSTEM=4,1,1,-;NVRM: Xid (PCI:0000:3b:00): 79\n"
        "[ 12.3] NVRM: Xid (PCI:0000:3b:00): 79\nx4,9,9,-;NVRM: Xid (PCI:0000:3b:00): 79\n"
    )
    assert codes(KernelLog(log.path, -1).new_records()) == []


def test_three_lines_without_an_xid_report_a_lost_gpu(log):
    log.write("NVRM: The NVIDIA GPU 0000:3b:00.0")
    log.write("NVRM: (PCI ID: 10de:20b5) installed in this system has")
    log.write("NVRM: fallen off the bus and is not responding to commands.")
    log.write("NVRM: fallen off the bus and is not responding to commands.")
    assert codes(KernelLog(log.path, -1).new_records()) == [(GPU, 79, None, None)]


def test_each_line_of_a_log_is_read_once_and_only_when_complete(log):
    reader = KernelLog(log.path, -1)
    assert reader.new_records().xids == ()
    assert "can't be read" in reader.problem
    log.write("NVRM: Xid (PCI:0000:3b:00): 48")
    log.write("NVRM: Xid (PCI:0000:3b:00): 6", ending="")
    first = reader.new_records()
    assert codes(first) == [(GPU, 48, None, None)]
    assert reader.problem == ""
    with log.path.open("a") as file:
        file.write("2\n")
    assert codes(reader.new_records()) == [(GPU, 62, None, None)]
    assert reader.new_records().xids == ()
    assert codes(KernelLog(log.path, first.position).new_records()) == [(GPU, 62, None, None)]


def test_a_file_that_was_replaced_is_read_from_its_beginning(log):
    reader = KernelLog(log.path, -1)
    log.write("NVRM: Xid (PCI:0000:3b:00): 48")
    reader.new_records()
    log.path.rename(log.path.with_name("old"))
    log.write("NVRM: Xid (PCI:0000:3b:00): 62")
    reader.new_records()
    assert codes(reader.new_records()) == [(GPU, 62, None, None)]


def test_xids_from_before_the_driver_was_loaded_do_not_count(log):
    log.write("NVRM: Xid (PCI:0000:3b:00): 48")
    log.write("NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.65.06")
    log.write("NVRM: Xid (PCI:0000:3b:00): 62")
    news = KernelLog(log.path, -1).new_records()
    assert news.is_driver_new
    assert codes(news) == [(GPU, 62, None, None)]


def test_a_log_of_garbage_ends_without_an_error(log):
    log.path.write_bytes(bytes(range(256)) * 4000 + b"\n" + b"4," * 100_000)
    reader = KernelLog(log.path, -1)
    assert reader.new_records().xids == ()
    log.path.write_bytes(b"")
    reader.new_records()
    log.write("\nx")
    log.write("NVRM: Xid (PCI:0000:3b:00): 62")
    assert codes(reader.new_records()) == [(GPU, 62, None, None)]
