"""Bytes to lines, numbers and mined points: each mending step on a small file, and time linear in hostile lines."""

from __future__ import annotations

import gzip
import math
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose.model import Problem
from diagnose.texts import LONGEST, Line, Miner, lines, number, pairs, peel, seconds


def read(tmp_path: Path, raw: bytes, problems: list[Problem] | None = None) -> list[Line]:
    path = tmp_path / "x.log"
    path.write_bytes(raw)
    return list(lines(path, problems))


@pytest.mark.parametrize(
    ("token", "value"),
    [
        ("1.875E-05", 1.875e-05), ("2.", 2.0), (".5", 0.5), ("7,282", 7282.0), ("0,001", 0.001), ("3,5", 3.5), ("5K", 5e3),
        ("1.2B", 1.2e9), ("512M", 5.12e8), ("tensor(0.0123, device='cuda:0')", 0.0123), ("tensor([3.])", 3.0), ("'3.903'", 3.903),
        ("1_000", 1000.0), ("-100.00%", -100.0), ("-Infinity", -math.inf), ("inf", math.inf), ("1.#INF", math.inf), ("-1.0", -1.0),
    ],
)  # fmt: skip
def test_a_number_is_read_in_every_shape_that_logs_print(token: str, value: float) -> None:
    assert number(token) == value


@pytest.mark.parametrize("token", ["", "null", "NA", "N/A", "None", "abc", "1.2.3", "0x7f", "--1", "1" * 1000])
def test_what_is_no_number_is_none(token: str) -> None:
    assert number(token) is None


@pytest.mark.parametrize("token", ["nan", "NaN", "-nan", "1.#QNAN", "-1.#IND"])
def test_nan_stays_nan(token: str) -> None:
    value = number(token)
    assert value is not None and math.isnan(value)


@given(st.floats())
def test_a_printed_float_is_read_as_itself(value: float) -> None:
    back = number(repr(value))
    assert back is not None and (back == value or (math.isnan(back) and math.isnan(value)))


@given(st.text(max_size=60))
def test_any_token_is_survived(token: str) -> None:
    number(token)


TEXT = "step 1 loss 2.5 █\nstep 2 loss 2.4\r\nstep 3 loss 2.3\n"
LINES = ["step 1 loss 2.5 █", "step 2 loss 2.4", "step 3 loss 2.3"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_every_encoding_gives_the_same_lines(tmp_path: Path, encoding: str) -> None:
    found = read(tmp_path, TEXT.encode(encoding))
    assert [x.text for x in found] == LINES
    assert [x.number for x in found] == [1, 2, 3]


def test_a_big_endian_mark_is_known(tmp_path: Path) -> None:
    assert [x.text for x in read(tmp_path, b"\xfe\xff" + TEXT.encode("utf-16-be"))] == LINES


def test_the_encoding_may_change_in_the_middle(tmp_path: Path) -> None:
    found = read(tmp_path, b"step 1 loss 2\n" + "\ufeffstep 2 loss 1\n".encode("utf-16-le") + b"step 3 loss 0\n")
    assert [x.text for x in found] == ["step 1 loss 2", "step 2 loss 1", "step 3 loss 0"]


def test_a_bad_byte_loses_no_line(tmp_path: Path) -> None:
    assert len(read(tmp_path, b"a\xff\xfeb\nc\n")) == 2


def test_runs_of_nul_are_dropped(tmp_path: Path) -> None:
    found = read(tmp_path, b"\0" * 300_000 + b"step 1 loss 2\n" + b"\0" * 300_000)
    assert [x.text for x in found] == ["step 1 loss 2"]


def test_colours_go_and_redraws_stay(tmp_path: Path) -> None:
    raw = b"\x1b[32mloss 2\x1b[0m\rloss 3\x1b[A\r\nloss: 4" + b"\x08" * 7 + b"loss: 5\nab\x08c\n\x1b]0;title\x07x\n"
    assert [x.text for x in read(tmp_path, raw)] == ["loss 2", "loss 3", "loss: 4", "loss: 5", "ac", "x"]


def test_glued_records_are_split(tmp_path: Path) -> None:
    raw = b"  1%| 6/1184 [00:21<1:09:10]"
    raw += b"[2021-02-04 15:06:19,825] [INFO] [a.py:1:f] hi 7/8 [0s]Traceback (most recent call last):\n"
    found = read(tmp_path, raw)
    assert [x.text for x in found][1:] == ["[INFO] [a.py:1:f] hi 7/8 [0s]", "Traceback (most recent call last):"]
    assert found[0].time is None and found[1].time == seconds("2021-02-04 15:06:19,825")


@pytest.mark.parametrize(
    ("raw", "text", "rank", "at"),
    [
        ("[default3]:[rank7]:[titan] 2026-01-02 03:04:05,5 - root - x", "root - x", 7, 1767323045.5),
        ("[rank12]: Traceback", "Traceback", 12, None),
        ("[1,5]<stderr>:x", "x", 5, None),
        ("(RayTrainWorker pid=12, ip=10.0.0.1) x", "x", None, None),
        ("worker-0: [2026-01-02 03:04:05,000] [INFO] x", "[INFO] x", None, 1767323045.0),
        ("2026-01-02T03:04:05.123456789Z step 1", "step 1", None, 1767323045.123456789),
        ("2026-01-02T03:04:05+01:00 x", "x", None, 1767319445.0),
        ("W1130 21:27:51.603000 12486 torch/x.py:1028] hi", "hi", None, None),
        ("[INFO 2020-06-08 06:02:19] 0/450, S=7", "0/450, S=7", None, 1591596139.0),
        ("  File \"x\", line 3", "  File \"x\", line 3", None, None),
        ("nodes: 4", "nodes: 4", None, None),
        ("2026-02-31 03:04:05 x", "x", None, None),
    ],
)  # fmt: skip
def test_prefixes_become_fields(raw: str, text: str, rank: int | None, at: float | None) -> None:
    found = peel(raw)
    assert found[:2] == (text, rank)
    assert found[2] == (None if at is None else pytest.approx(at))


def test_slurm_numbers_are_ranks_only_where_all_lines_have_them(tmp_path: Path) -> None:
    assert [x.rank for x in read(tmp_path, b"0: a\n1: b\n0: c\n")] == [0, 1, 0]
    assert [x.text for x in read(tmp_path, b"Epochs\n1: b\nfoo\n")] == ["Epochs", "1: b", "foo"]


def test_docker_json_is_unboxed(tmp_path: Path) -> None:
    raw = b'{"log":"step 1 loss 2\\n","stream":"stdout","time":"2026-01-02T03:04:05.5Z"}\n'
    assert read(tmp_path, raw) == [Line(1, "step 1 loss 2", None, 1767323045.5)]


def test_gzip_is_read_and_a_cut_gzip_says_so(tmp_path: Path) -> None:
    packed = gzip.compress(b"".join(b"step %d loss %d\n" % (i, i * 7919 % 1013) for i in range(5000)))
    assert len(read(tmp_path, packed)) == 5000
    problems: list[Problem] = []
    assert 0 < len(read(tmp_path, packed[: len(packed) // 2], problems)) < 5000
    assert len(problems) == 1


def test_a_long_line_is_cut_with_a_note(tmp_path: Path) -> None:
    problems: list[Problem] = []
    found = read(tmp_path, b"a" * 1_000_000 + b"\nstep 1 loss 2\n", problems)
    assert [len(x.text) for x in found] == [LONGEST, 13]
    assert [(p.where, p.what) for p in problems] == [("x.log:1", f"a line of 1000000 bytes was cut to {LONGEST}")]


@given(st.binary(max_size=400))
def test_any_bytes_are_survived(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    read(tmp_path_factory.mktemp("t"), raw)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("epoch 0 step 10 loss nan grad_norm 0.2", [("epoch", "0"), ("step", "10"), ("loss", "nan"), ("grad_norm", "0.2")]),
        ("step: 600 loss: 2.2746 time: 0.0123s", [("step", "600"), ("loss", "2.2746"), ("time", "0.0123")]),
        ("step: 3 | loss: 2.1", [("step", "3"), ("loss", "2.1")]),
        ("loss:0.92, global_step:160", [("loss", "0.92"), ("global_step", "160")]),
        ("step 60: train loss 3.5, val loss 3.6", [("step", "60"), ("train loss", "3.5"), ("val loss", "3.6")]),
        ("grad norm: 0.9, learning rate = 1e-3", [("grad norm", "0.9"), ("learning rate", "1e-3")]),
        ('print0(f"step:{step}/{n} loss:{loss}")', []),
        ("at 10:20:30 with v 1.2.3 on 2023-04-18 x=0x7f", []),
    ],
)
def test_pairs_are_found_however_they_are_written(text: str, found: list[tuple[str, str]]) -> None:
    assert list(pairs(text)) == found


def mined(texts: list[str], **fields: object) -> list[tuple[str, int, float]]:
    miner = Miner(**fields)  # type: ignore[arg-type]
    out = [p for i, t in enumerate(texts) for p in miner.feed(Line(i + 1, t))]
    return [(p.name, p.step, p.value) for p in [*out, *miner.close(len(texts))]]


def test_a_name_counts_when_it_recurs() -> None:
    assert mined([f"step {i} loss {i}.5" for i in range(5)]) == [("loss", i, i + 0.5) for i in range(5)]
    assert mined([f"step {i} loss {i}.5" for i in range(3)]) == [("loss", i, i + 0.5) for i in range(3)]
    assert mined([f"step {i} loss {i}.5" for i in range(2)]) == []
    assert mined([f"step {i} loss {i}.5" for i in range(4)], short_file=3) == []


def test_a_step_that_starts_again_with_each_epoch_is_counted_on() -> None:
    texts = [f"epoch {e} step {s} loss 1.{e}{s}" for e in range(3) for s in range(4)]
    assert [s for n, s, _ in mined(texts) if n == "loss"] == list(range(12))


def test_lines_that_another_rank_repeats_count_once() -> None:
    miner = Miner()
    points = [p for i in range(6) for r in range(3) for p in miner.feed(Line(3 * i + r, f"step {i} loss {i}.5"))]
    assert [p.step for p in points] == list(range(6)) and miner.repeats == 12


def test_ranks_that_say_so_are_kept_apart() -> None:
    miner = Miner()
    points = [p for i in range(6) for r in range(2) for p in miner.feed(Line(i, f"step {i} loss {i}.5", rank=r))]
    assert [(p.step, p.rank) for p in points if p.rank == 1] == [(i, 1) for i in range(6)]


def test_evaluation_lines_are_a_group_of_their_own() -> None:
    miner = Miner()
    found = {p.group for i in range(5) for p in miner.feed(Line(i, f"validation: step: {i} loss: 2.{i}"))}
    assert found == {"val"}


@pytest.mark.parametrize(
    "unit", ["step: 1 ", "a b", "step=1, ", " ", "[", "((", "loss: ", "=", "1.", "\x1b[", "\x1b]", "x\x08", "_1", "[rank1]:", "[20"]
)
def test_hostile_lines_cost_time_in_proportion(tmp_path: Path, unit: str) -> None:
    def took(size: int) -> float:
        miner, start = Miner(), time.perf_counter()
        for line in read(tmp_path, b"step: 1 " + (unit * (size // len(unit))).encode()):
            miner.feed(line)
        return time.perf_counter() - start

    assert took(60_000) < 20 * max(took(6_000), 0.02)  # a quadratic pattern takes a hundred times as long
