"""The W&B reader against a slow decoder, real files of five SDK versions, damaged files, and rows made up at random.

The files under `tests/data/wandb` were written by wandb 0.12.21, 0.16.6, 0.17.5 (core), 0.19.11 and 0.31.0; those in
`damaged` were killed or had bytes changed. With DIAGNOSE_SHARED set to a folder, all `.wandb` files below it are compared too.
"""

from __future__ import annotations

import json
import math
import os
import struct
import tempfile
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diagnose.parts import RawRun
from diagnose.readers.wandb import READER
from diagnose.readers.wandb.console import Console
from diagnose.readers.wandb.rows import Rows
from diagnose.readers.wandb.side import arguments, config_yaml

DATA = Path(__file__).parent.parent / "data" / "wandb"
VERSIONS = ("v0.12.21", "v0.16.6", "v0.19.11", "v0.31.0")
BLOCK = 32768
SHARED = os.environ.get("DIAGNOSE_SHARED", "")
OTHERS = sorted(p for p in Path(SHARED).rglob("*.wandb") if p.is_file()) if SHARED else []


def files(pattern: str) -> list[Path]:
    return sorted(DATA.glob(pattern))


def one(version: str, run: str) -> Path:
    return files(f"{version}/wandb/*-{run}/*.wandb")[0]


def read(*paths: Path) -> RawRun:
    return READER.read(list(paths))


def points(run: RawRun, name: str, group: str = "") -> list[tuple[int, float]]:
    found = [s for s in run.series if s.name == name and s.group == group]
    return [(int(a), float(b)) for s in found for a, b in zip(s.steps, s.values, strict=True)]


def same(one: list[tuple[int, float]], other: list[tuple[int, float]]) -> bool:
    return repr(one) == repr(other)  # NaN is equal to NaN, and 0.0 is not -0.0


# -- a writer for tests, and a decoder that is slow and plain


def vint(n: int) -> bytes:
    return bytes([n & 127 | 128]) + vint(n >> 7) if n > 127 else bytes([n])


def field(number: int, data: bytes | int) -> bytes:
    return vint(number << 3) + vint(data) if isinstance(data, int) else vint(number << 3 | 2) + vint(len(data)) + data


def item(name: str | list[str], value: str, inner: int = 1) -> bytes:
    key = field(1, name.encode()) if isinstance(name, str) else b"".join(field(2, n.encode()) for n in name)
    return field(inner, key + field(16, value.encode()))


def history(values: dict[str, str], step: int | None = None) -> bytes:
    items = b"".join(item(k, v) for k, v in values.items())
    return field(2, items + (b"" if step is None else field(2, field(1, step))))


def framed(records: list[bytes], origin: int = 0) -> bytes:
    out = bytearray(b":W&B\xe1\xbe\x00")
    for record in records:
        kinds, rest = (1, 2), record
        while True:
            left = BLOCK - (len(out) - origin) % BLOCK
            if left < 7:
                out += bytes(left)
                left = BLOCK
            part, rest = rest[: left - 7], rest[left - 7 :]
            kind = kinds[1] if rest else kinds[0]
            out += struct.pack("<IHB", zlib.crc32(bytes([kind]) + part), len(part), kind) + part
            kinds = (4, 3)
            if not rest:
                break
    return bytes(out)


def write(folder: Path, records: list[bytes], run: str = "t", origin: int = 0) -> Path:
    path = folder / f"run-{run}.wandb"
    path.write_bytes(framed(records, origin))
    return path


def slow_records(data: bytes, origin: int) -> Iterator[bytes]:
    """Whole records up to the first oddity (all files it is used on are sound up to their cut)."""
    pos, held = 7, b""
    while pos < len(data):
        left = BLOCK - (pos - origin) % BLOCK
        if left < 7:
            pos += left
            continue
        if pos + 7 > len(data):
            return
        crc, size, kind = struct.unpack_from("<IHB", data, pos)
        part = data[pos + 7 : pos + 7 + size]
        if zlib.crc32(bytes([kind]) + part) != crc:
            return
        pos += 7 + size
        held = part if kind in (1, 2) else held + part
        if kind in (1, 4):
            yield held


def slow_fields(data: bytes) -> list[tuple[int, bytes | int]]:
    def number(pos: int) -> tuple[int, int]:
        value, shift = 0, 0
        while data[pos] & 128:
            value, shift, pos = value | (data[pos] & 127) << shift, shift + 7, pos + 1
        return value | data[pos] << shift, pos + 1

    out, pos = [], 0
    while pos < len(data):
        tag, pos = number(pos)
        if tag & 7 == 0:
            value, pos = number(pos)
            out.append((tag >> 3, value))
        else:
            size, pos = {1: (8, pos), 5: (4, pos)}.get(tag & 7) or number(pos)
            out.append((tag >> 3, data[pos : pos + size]))
            pos += size
    return out


def slow_leaves(name: str, value: object) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for key, inner in value.items() if "_type" not in value else ():
            yield from slow_leaves(f"{name}.{key}", inner)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield name, float(value)
    elif value is None:
        yield name, math.nan


def slow_rows(path: Path, origin: int = 0) -> Iterator[dict[str, float]]:
    """Each history row as name -> number, with its `_step`; null is NaN, what is no number is left out."""
    for record in slow_records(path.read_bytes(), origin):
        for number, value in slow_fields(record):
            if number != 2:
                continue
            row: dict[str, float] = {}
            step = None
            for inner, part in slow_fields(value):
                if inner == 2:
                    step = dict(slow_fields(part)).get(1, 0)
                    continue
                parts = slow_fields(part)
                nested = [p.decode() for n, p in parts if n == 2]
                name = ".".join(nested) if nested else dict(parts)[1].decode()
                if len(nested) > 1 and nested[-1] in ("_type", "bins", "values"):
                    continue
                row.update(slow_leaves(name, json.loads(dict(parts)[16])))
            row.setdefault("_step", float(step or 0))
            yield row


COUNTERS = ("train/global_step", "trainer/global_step", "global_step", "iter", "step", "_step")


def slow_series(path: Path, origin: int = 0) -> dict[str, list[tuple[int, float]]]:
    rows = list(slow_rows(path, origin))
    numeric = {name for row in rows for name, value in row.items() if not math.isnan(value)} | {"train/loss"}
    out: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        for name, value in row.items():
            if name in ("_step", "_timestamp", "_runtime") or name.startswith("_wandb") or name not in numeric:
                continue
            wished = ["eval/step"] if name.startswith("eval/") else []  # the only define_metric of these files
            axis = next(a for a in (*wished, *COUNTERS) if a in row)
            out.setdefault(name, []).append((int(row[axis]), value))
    return out


def assert_same_as_slow(path: Path, origin: int = 0) -> None:
    run = read(path)
    expected = slow_series(path, origin)
    found = {s.name for s in run.series if not s.group}
    flags = {n for n in found if n not in expected}
    assert set(expected) <= found
    for name in flags:  # only columns of true and false, which the slow decoder leaves out
        assert {v for _, v in points(run, name)} <= {0.0, 1.0}
    for name, values in expected.items():
        assert same(points(run, name), values), name


# -- real files


SOUND = files("v0.[123]*/wandb/*/*.wandb") + files("damaged/killed*/**/*.wandb")


@pytest.mark.parametrize("path", SOUND, ids=lambda p: "-".join(p.parts[-4::3]))
def test_every_point_is_what_a_slow_decoder_reads(path):
    assert_same_as_slow(path)


@pytest.mark.skipif(not OTHERS, reason="DIAGNOSE_SHARED is not set")
def test_every_point_of_other_files_is_what_a_slow_decoder_reads():
    for path in OTHERS:
        if path.parent.name != "synth" and "0.17.5" not in str(path) and path.stat().st_size > 7:
            assert_same_as_slow(path)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_basic_run_has_its_loss_with_nan_and_infinities(version):
    run = read(one(version, "basic001"))
    values = [v for _, v in points(run, "train/loss")]
    assert len(values) == 20
    assert math.isnan(values[5]) and values[6] == math.inf and values[7] == -math.inf and math.isnan(values[8])
    assert all(v == pytest.approx(2 * math.exp(-s / 10), rel=1e-12) for s, v in enumerate(values) if s not in (5, 6, 7, 8))
    assert [v for _, v in points(run, "nested.a")] == list(range(20))
    assert [v for _, v in points(run, "nested.b.c")] == [2.0 * s for s in range(20)]
    assert [v for _, v in points(run, "dotted.key")] == list(range(20))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_step_metric_of_a_glob_is_the_step(version):
    run = read(one(version, "basic001"))
    assert [s for s, _ in points(run, "eval/loss")] == [0, 500, 1000, 1500]
    assert [s for s, _ in points(run, "train/loss")][:4] == [0, 2, 3, 4]  # an evaluation took _step 1


@pytest.mark.parametrize("version", VERSIONS)
def test_text_lists_histograms_and_lone_nulls_are_no_series_and_a_flag_is(version):
    run = read(one(version, "basic001"))
    names = {s.name for s in run.series if not s.group}
    assert names == {"train/loss", "train/grad_norm", "lr", "nested.a", "nested.b.c", "dotted.key", "eval/loss", "eval/step", "flag"}
    assert [v for _, v in points(run, "flag")] == [1.0]
    assert {"text", "list"} <= set(run.facts["not_numeric"])


@pytest.mark.parametrize(("version", "count"), [("v0.12.21", 1), ("v0.16.6", 1), ("v0.19.11", 1), ("v0.31.0", 0)])
def test_null_in_a_numeric_series_is_said_once(version, count):
    said = [p.what for p in read(one(version, "basic001")).problems]
    assert len(said) == count and all("null was read as NaN 1 time (train/loss)" in s for s in said)


@pytest.mark.parametrize(("version", "kept"), [("0.19.11", [1.0, math.nan, 3.0]), ("0.31.0", [1.0, 3.0])])
def test_null_is_left_out_where_the_sdk_writes_nan_as_nan(tmp_path, version, kept):
    header = field(21, field(1, field(1, f"{version}+abc".encode())))
    run = read(write(tmp_path, [header, *[history({"a": v, "b": "2"}, s) for s, v in enumerate(("1", "null", "3"))]]))
    assert repr([v for _, v in points(run, "a")]) == repr(kept) and len(points(run, "b")) == 3
    assert len(run.problems) == 1 and run.problems[0].what.startswith("null ")


def test_parts_of_images_and_tables_are_no_series(tmp_path):
    parts = {"_type": '"image-file"', "height": "4", "size": "69"}
    row = b"".join(item(["img", k], v) for k, v in parts.items()) + item("loss", "1") + item(["dict", "height"], "5")
    run = read(write(tmp_path, [field(2, row)]))
    assert {s.name for s in run.series} == {"loss", "dict.height"}


@pytest.mark.parametrize("version", VERSIONS)
def test_the_configuration_is_read_with_dotted_names(version):
    found = {s.name: s.value for s in read(one(version, "basic001")).settings}
    assert found["lr"] == 1e-3 and found["optimizer.name"] == "adamw" and found["optimizer.betas"] == [0.9, 0.95]
    assert found["nan_cfg"] is None and found["added_later"] == 5 and found["bf16"] is True
    assert not any(name.startswith("_wandb") for name in found)


@pytest.mark.parametrize("version", VERSIONS)
def test_explicit_steps_are_kept_and_a_dropped_one_is_not_there(version):
    run = read(one(version, "steps001"))
    assert points(run, "a") == [(10, 1), (20, 3), (30, 4), (1000, 6)]
    assert points(run, "b") == [(10, 2), (30, 5)]


@pytest.mark.parametrize("version", VERSIONS)
def test_two_directories_of_one_id_are_two_attempts(version):
    paths = files(f"{version}/wandb/*-resume001/*.wandb")
    run = read(*reversed(paths))  # the order of start times decides, not that of the call
    assert points(run, "loss") == [(s, 100.0 + s) for s in range(10)] + [(s, 200.0 + s) for s in range(5, 15)]
    assert [s.source for s in run.series if s.name == "loss"] == [0, 1] and len(run.sources) == 2
    resume = [e for e in run.events if e.kind == "resume"]
    assert len(resume) == 1 and resume[0].step == 5 and resume[0].numbers["last_step_before"] == 9
    assert [e.numbers["exit_code"] for e in run.events if e.kind == "exit"] == [0, 3]
    assert run.key == "resume001" and run.clean_end is False
    assert [e.says for e in run.events if e.kind == "config"] == [f"lr was 1.0 and is 2.0 from {paths[1].parent.name} on"]
    assert [s.value for s in run.settings if s.name == "lr"] == [2.0]


def test_a_record_over_three_blocks_is_read_whole():
    run = read(one("v0.12.21", "large001"))
    assert {s.name: s.value for s in run.settings}["big"] == "x" * 70000
    assert points(run, "loss") == [(s, float(s)) for s in range(400)]


def test_blocks_that_start_after_the_header_are_found():
    path = DATA / "v0.17.5-core-padded" / "run-pad2.wandb"
    run = read(path)
    assert_same_as_slow(path, origin=7)
    assert sum(len(s.steps) for s in run.series if not s.group) == 500 and not run.problems


def test_times_versions_and_a_clean_end_are_told():
    run = read(one("v0.31.0", "basic001"))
    loss = next(s for s in run.series if s.name == "train/loss")
    assert loss.times is not None and 1.79e9 < loss.times[0] <= loss.times[-1] < 1.8e9
    assert run.sources[0].version == "0.31.0" and run.facts["wandb_version"] == "0.31.0"
    assert run.facts["started"].startswith("2026-11-30T21:18") and run.clean_end is True
    assert read(one("v0.12.21", "basic001")).facts["wandb_version"] == "0.12.21"


def test_machine_numbers_are_a_group_of_their_own():
    run = read(one("v0.16.6", "basic001"))
    system = [s for s in run.series if s.group == "system"]
    assert system and all(s.name.startswith("system/") and s.axis == "row" and s.times is not None for s in system)


# -- damage


@pytest.mark.parametrize(
    ("name", "count", "said"),
    [
        ("empty", 0, "the file has 0 bytes"),
        ("header_only", 0, "neither a run nor history"),
        ("all_zero", 0, "begins with 'zeros'"),
        ("bad_magic", 0, "not with ':W&B'"),
        ("version1", 0, "the file has version 1; only version 0 is known"),
        ("zero_padded", 20, "4096 zero bytes at the end"),
        ("truncated_mid_record", 20, "the file ends inside a record; its 34 bytes are lost"),
    ],
)
def test_a_damaged_file_says_what_was_seen(name, count, said):
    run = read(DATA / "damaged" / "synth" / f"run-{name}.wandb")
    assert len(points(run, "train/loss")) == count
    assert len(run.problems) == 1 and said in run.problems[0].what


def test_a_wrong_checksum_costs_the_rest_of_its_block():
    run = read(DATA / "damaged" / "synth" / "run-bad_crc_block5.wandb")
    steps = [s for s, _ in points(run, "loss")]
    assert steps == [*range(134), *range(181, 400)] and run.clean_end is True
    assert [p.what for p in run.problems] == ["a wrong checksum; 32403 bytes were skipped"]


def test_a_killed_run_is_read_to_its_cut():
    run = read(files("damaged/killed_all_0.16.6/**/run-killed.wandb")[0])
    assert run.clean_end is False and "the file ends inside a record; its 7 bytes" in run.problems[0].what
    assert len(points(run, "loss")) > 2000


def test_an_origin_of_7_is_found_in_made_up_files_of_any_length(tmp_path):
    for count in (200, 700, 1100, 1237):
        rows = [history({"a": f"{s}.5", "pad": '"' + "y" * (s % 60) + '"'}, s) for s in range(count)]
        run = read(write(tmp_path, rows, origin=7))
        assert points(run, "a") == [(s, s + 0.5) for s in range(count)], count


def test_zeros_in_the_middle_are_damage(tmp_path):
    data = bytearray(framed([history({"a": str(s)}, s) for s in range(6000)]))
    data[BLOCK : 2 * BLOCK] = bytes(BLOCK)
    path = tmp_path / "run-z.wandb"
    path.write_bytes(data)
    run = read(path)
    assert [p.what.split(";")[0] for p in run.problems[:1]] in (["zeros instead of records"], ["a record without its end"])
    steps = [s for s, _ in points(run, "a")]
    assert steps[0] == 0 and steps[-1] == 5999 and len(steps) < 6000


def mixed_file() -> bytes:
    rows = [field(17, field(1, b"h") + field(4, item("lr", "0.1")) + field(17, field(1, 1_700_000_000)))]
    words = ['"x"' if s % 5 else "null" for s in range(40)]
    rows += [history({"_step": str(s), "loss": f"{s / 7}", "text": words[s], "_timestamp": str(1.7e9 + s)}, s) for s in range(40)]
    rows.append(field(5, item("big", '"' + "z" * 40000 + '"')))
    rows += [history({"loss": f"{s}.5", "m": json.dumps({"a": {"b": s}, "f": True})}, s) for s in range(40, 60)]
    rows += [field(13, field(3, b"Traceback (most recent call last)\n  File x\nValueError: y\n")), field(18, field(1, 1))]
    return framed(rows)


MIXED = mixed_file()


WHOLE = {"made": MIXED, "0.16": one("v0.16.6", "basic001").read_bytes(), "0.31": one("v0.31.0", "basic001").read_bytes()}


@pytest.mark.parametrize("data", WHOLE.values(), ids=WHOLE.keys())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 1))
def test_any_prefix_reads_as_a_prefix_of_the_points(data, share):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run-p.wandb"
        path.write_bytes(data)
        whole = read(path)
        path.write_bytes(data[: int(share * len(data))])
        cut = read(path)
    for series in cut.series:
        expected = points(whole, series.name, series.group)
        found = points(cut, series.name, series.group)
        assert same(found, expected[: len(found)]), series.name


@cache
def all_points(data: bytes) -> set[tuple[str, int, str]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run-f.wandb"
        path.write_bytes(data)
        run = read(path)
    return {(s.name, step, repr(value)) for s in run.series for step, value in points(run, s.name, s.group)}


@settings(max_examples=150, deadline=None)
@given(place=st.integers(0, len(MIXED) - 1), mask=st.integers(1, 255))
def test_a_flipped_byte_never_raises_and_invents_no_point(place, mask):
    data = bytearray(MIXED)
    data[place] ^= mask
    assert all_points(bytes(data)) <= all_points(MIXED)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=400))
def test_any_bytes_behind_the_header_and_in_a_record_are_survived(junk):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run-j.wandb"
        path.write_bytes(b":W&B\xe1\xbe\x00" + junk)
        read(path)
        path.write_bytes(framed([junk, field(2, junk), field(17, junk), field(5, junk), field(7, junk), field(12, junk), field(26, junk)]))
        read(path)


# -- the two ways of a row


VALUES = st.one_of(
    st.floats().map(json.dumps),
    st.integers().map(str),
    st.sampled_from(["null", "true", "false", '"NaN"', '"-Infinity"', '"text"', "[1,2]", '{"a":1,"b":{"c":2}}', "", "{", "1" * 200]),
)
NAMES = st.one_of(st.text(min_size=1, max_size=8), st.sampled_from(["loss", "_step", "x" * 130]))
ITEMS = st.tuples(NAMES, VALUES, st.booleans())


def everything(rows: Rows) -> list[tuple[str, list[int], str]]:
    return sorted((name, where.tolist(), repr(values.tolist())) for name, where, values in rows.columns())


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.lists(ITEMS, max_size=8), st.none() | st.integers(0, 2**63 - 1)), max_size=6))
def test_the_fast_way_gives_what_the_general_way_gives(rows):
    fast, slow = Rows(), Rows()
    for items, step in rows:
        made = b"".join(item([name] if nested else name, value) for name, value, nested in items)
        made += b"" if step is None else field(2, field(1, step))
        fast.add(made)
        slow.slow(made)
    assert everything(fast) == everything(slow)
    assert repr(list(fast.record_steps)) == repr(list(slow.record_steps)) and fast.unreadable == slow.unreadable


def test_the_fast_way_is_taken_for_short_numbers_and_left_for_a_step_of_130():
    payload = item("loss", "1.5") + field(2, field(1, 7))
    assert Rows()._fast(payload)
    awkward = item("loss", "1.5") + b"\x12\x04\x08\x82\x01\x20" + b""  # 82 01 as a varint inside the step
    rows = Rows()
    assert not rows._fast(awkward)
    made = item("loss", "1.5") + field(2, field(1, 130))
    rows.add(made)
    assert rows.record_steps[-1] == 130 and len(next(rows.columns())[2]) == 1


# -- axes


def test_a_logged_global_step_is_the_step_and_stays_a_series(tmp_path):
    rows = [history({"train/loss": f"{s}.0", "train/global_step": str(10 * s), "_step": str(s)}) for s in range(5)]
    run = read(write(tmp_path, [*rows, history({"eval/loss": "0.5", "train/global_step": "40", "_step": "5"})]))
    assert points(run, "train/loss") == [(10 * s, float(s)) for s in range(5)] and points(run, "eval/loss") == [(40, 0.5)]
    assert [v for _, v in points(run, "train/global_step")] == [0, 10, 20, 30, 40, 40]


def test_rows_without_the_axis_carry_its_last_value_and_that_is_said(tmp_path):
    rows = [history({"loss": str(s), "global_step": str(10 * s), "_step": str(2 * s)}) + b"" for s in range(6)]
    rows.insert(4, history({"acc": "0.9", "_step": "7"}))
    run = read(write(tmp_path, rows))
    assert points(run, "acc") == [(30, 0.9)]
    assert [p.what for p in run.problems] == ["1 points of 1 series stand in rows without global_step; they carry its last value"]


def test_a_counter_that_starts_again_is_not_the_step(tmp_path):
    run = read(write(tmp_path, [history({"loss": "1", "iter": str(s % 50), "_step": str(s)}) for s in range(150)]))
    assert [s for s, _ in points(run, "loss")] == list(range(150))
    assert "iter falls from 49 to 0" in run.problems[0].what


def test_a_fractional_epoch_is_no_step_and_a_whole_one_is(tmp_path):
    metric = field(12, field(1, b"val/loss") + field(4, b"epoch"))
    run = read(write(tmp_path, [metric, *[history({"val/loss": "1", "epoch": str(e), "_step": str(9 * e)}) for e in range(3)]]))
    assert [(s.axis, s.steps.tolist()) for s in run.series if s.name == "val/loss"] == [("epoch", [0, 1, 2])]
    run = read(write(tmp_path, [metric, *[history({"val/loss": "1", "epoch": f"{e / 2}", "_step": str(9 * e)}) for e in range(3)]]))
    assert [(s.axis, s.steps.tolist()) for s in run.series if s.name == "val/loss"] == [("step", [0, 9, 18])]


def test_an_exact_metric_wins_over_globs_and_the_longest_glob_over_shorter_ones(tmp_path):
    metrics = [(b"", b"*", b"g"), (b"", b"val/*", b"v"), (b"val/x", b"", b"samples")]
    records = [field(12, field(1, n) + field(2, g) + field(4, m)) for n, g, m in metrics]
    row = {"a": "1", "val/x": "1", "val/y": "1", "g": "5", "v": "6", "samples": "7", "_step": "0"}
    run = read(write(tmp_path, [*records, history(row)]))
    assert [points(run, n)[0][0] for n in ("a", "val/x", "val/y")] == [5, 7, 6]
    assert next(s.axis for s in run.series if s.name == "val/x") == "samples"


def test_without_any_step_the_clock_orders_the_rows(tmp_path):
    run = read(write(tmp_path, [history({"a": str(v), "_timestamp": str(1.7e9 + t)}) for v, t in ((1, 5), (2, 3), (3, 9))]))
    assert points(run, "a") == [(0, 2.0), (1, 1.0), (2, 3.0)] and run.series[0].axis == "row"


def test_gradient_histograms_keep_their_edges_and_norm(tmp_path):
    counts, edges = np.histogram(np.random.default_rng(0).normal(size=100_000), bins=64)
    whole = json.dumps({"_type": "histogram", "values": counts.tolist(), "bins": edges.tolist()})
    split = {"_type": '"histogram"', "values": json.dumps(counts.tolist()), "bins": json.dumps(edges.tolist())}
    parts = b"".join(item(["gradients/w", k], v) for k, v in split.items())
    run = read(write(tmp_path, [field(2, item("gradients/w", whole) + field(2, field(1, 0))), field(2, parts + field(2, field(1, 1)))]))
    for suffix, value in (("min", edges[0]), ("max", edges[-1]), ("norm", math.sqrt(100_000))):
        found = points(run, f"gradients/w/{suffix}")
        assert [s for s, _ in found] == [0, 1] and found[0][1] == found[1][1] == pytest.approx(value, rel=0.01)


# -- console and files beside the log


def test_tracebacks_memory_errors_and_dropped_points_are_heard_in_pieces(tmp_path):
    text = (
        'step 1\n[rank3]: Traceback (most recent call last):\n[rank3]:   File "a.py", line 1\n'
        "[rank3]: torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n"
        "wandb: WARNING Tried to log to step 15 that is less than the current step 20. Steps must be\n"
        "wandb: WARNING Step must only increase in log calls.  Step 110 < 161; dropping {'a': 1}.\n"
    )
    pieces = [text[k : k + 11] for k in range(0, len(text), 11)]
    records = [history({"a": "1"}, 4), *[field(13, field(3, p.encode())) for p in pieces], field(18, field(1, 1))]
    run = read(write(tmp_path, records))
    assert [(e.kind, e.rank, e.step) for e in run.events] == [("traceback", 3, 4), ("oom", 3, 4), ("exit", None, 4)]
    assert run.events[0].says.startswith("torch.cuda.OutOfMemoryError: CUDA out of memory")
    said = "the SDK dropped 2 log calls whose step lay behind (the first: step 15, when it had reached 20)"
    assert [p.what for p in run.problems] == [said]


def test_a_console_without_line_ends_stays_small():
    console = Console("x")
    for _ in range(10_000):
        console.feed("abcdefgh", "x@1", 0)
    assert sum(map(len, console._open)) <= 20_000
    console.feed("\nTraceback (most recent call last)", "x@2", 0)
    console.close(0)
    assert [h.event.says for h in console.heard] in ([], ["a traceback without its last line"])


def test_files_beside_the_log_are_read_when_the_log_has_none(tmp_path):
    folder = tmp_path / "wandb" / "run-20230101_000000-abc" / "files"
    folder.mkdir(parents=True)
    shapes = "lr: {desc: null, value: 0.001}\nopt:\n  value: {name: adam, betas: [0.9, .inf]}\n"
    (folder / "config.yaml").write_text("wandb_version: 1\n_wandb: {value: {}}\n" + shapes)
    args = ["--batch-size", "8", "--bf16", "--model.depth=3"]
    (folder / "wandb-metadata.json").write_text(json.dumps({"program": "train.py", "args": args, "gpu": "A100"}))
    (folder / "output.log").write_text("hello\nTraceback (most recent call last):\n  File\nKeyboardInterrupt\n")
    run = read(write(folder.parent, [history({"a": "1"}, 0)], "abc"))
    found = {s.name: s.value for s in run.settings}
    assert found == {"batch-size": 8, "bf16": True, "model.depth": 3, "lr": 0.001, "opt.name": "adam", "opt.betas": [0.9, math.inf]}
    assert run.facts["program"] == "train.py" and run.facts["gpu"] == "A100"
    assert [(e.kind, e.says) for e in run.events] == [("traceback", "KeyboardInterrupt")]


def test_yaml_with_unknown_tags_aliases_without_end_and_deep_nests_is_survived(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("a: !!python/object:os.system {value: ls}\nb: !x 5\n")
    assert config_yaml(path) == {"a": "ls", "b": "5"}
    path.write_text("a0: &a0 [x]\n" + "".join(f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 9)}]\n" for k in range(1, 30)))
    assert isinstance(config_yaml(path), dict)
    path.write_text("a: " + "[" * 50_000)
    assert config_yaml(path) is None
    path.write_bytes(b"x" * (300 << 10))
    assert config_yaml(path) is None


def test_command_lines_become_settings():
    args = ["train", "+trainer.max_steps=100", "--lr", "1e-3", "--name=x y", "--betas", "0.9", "0.95", "--flag", "--neg", "-1"]
    assert dict(arguments(args)) == {"trainer.max_steps": 100, "lr": 1e-3, "name": "x y", "betas": [0.9, 0.95], "flag": True, "neg": -1}


def test_json_lines_of_old_sdks_are_read_when_there_is_no_log(tmp_path):
    folder = tmp_path / "wandb" / "run-20190101_000000-old1"
    folder.mkdir(parents=True)
    path = folder / "wandb-history.jsonl"
    rows = [{"loss": 1.5, "m": {"a": 1}, "_step": 0, "_timestamp": 1.5e9}, {"loss": math.nan, "_step": 3, "_timestamp": 1.5e9 + 9}]
    path.write_text("".join(json.dumps(r) + "\n" for r in rows) + '{"loss": 2')
    (folder / "wandb-events.jsonl").write_text('{"system.cpu": 12.5, "_timestamp": 1500000001, "_wandb": true}\n')
    assert READER.claims(path) and READER.key(path) == "old1" and READER.home(path) == tmp_path
    run = read(path)
    assert same(points(run, "loss"), [(0, 1.5), (3, math.nan)]) and points(run, "m.a") == [(0, 1.0)]
    assert points(run, "system/cpu", "system") == [(0, 12.5)] and run.key == "old1" and run.clean_end is None
    assert "1 lines are no JSON object" in run.problems[0].what
    log = write(folder, [history({"loss": "9"}, 1)], "old1")
    assert points(read(path, log), "loss") == [(1, 9.0)]


# -- the contract


def test_it_claims_logs_by_magic_or_name_and_nothing_else(tmp_path):
    for path in files("**/*.wandb"):
        assert READER.claims(path), path
    odd = tmp_path / "any.bin"
    odd.write_bytes(b":W&B\xe1\xbe\x01")
    assert READER.claims(odd)
    for name, data in (("a.wandb", b"hello"), ("wandb-summary.json", b"{}"), ("run.log", b"")):
        (tmp_path / name).write_bytes(data)
        assert not READER.claims(tmp_path / name), name
    assert not READER.claims(tmp_path / "missing") and not READER.claims(tmp_path)


def test_home_is_above_the_wandb_folder_and_the_key_is_the_id():
    for base in ("wandb", ".wandb"):
        path = Path(f"x/{base}/offline-run-20260101_000000-ab12/run-ab12.wandb")
        assert READER.home(path) == Path("x") and READER.key(path) == "ab12"
    assert READER.home(Path("y/run-ab12.wandb")) == Path("y")


def test_a_link_to_the_last_run_is_not_read_twice(tmp_path):
    folder = tmp_path / "run-20260101_000000-t"
    folder.mkdir()
    path = write(folder, [history({"a": "1"}, 0)])
    link = tmp_path / "latest-run"
    link.symlink_to(folder.name)
    assert len(read(path, link / path.name).sources) == 1


def test_a_missing_file_and_no_file_are_survived(tmp_path):
    assert "can't be read" in read(tmp_path / "run-x.wandb").problems[0].what
    assert read().series == ()


def test_arrays_are_read_only_and_reading_twice_is_equal():
    path = one("v0.31.0", "basic001")
    first, second = read(path), read(path)
    assert all(same(points(first, s.name, s.group), points(second, s.name, s.group)) for s in (*first.series, *second.series))
    assert not any(a.flags.writeable for s in first.series for a in (s.steps, s.values))
    assert first.problems == second.problems and first.events == second.events


def test_hostile_values_cost_themselves_only(tmp_path):
    deep = '{"a":' * 100_000 + "1" + "}" * 100_000
    rows = [history({"deep": deep, "ok": "1"}, 0), history({"big": '{"q":' + "9" * 10_000 + "}", "ok": "2"}, 1)]
    run = read(write(tmp_path, rows))
    assert points(run, "ok") == [(0, 1.0), (1, 2.0)] and points(run, "big.q") == [(1, math.inf)]
    assert [p.what for p in run.problems] == ["1 values are no JSON, too long or too deep; they are left out"]
