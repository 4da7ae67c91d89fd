"""TensorBoard event files: parity with TensorBoard's own readers, damaged files, and the promises of the decoder."""

from __future__ import annotations

import gzip
import json
import math
import os
import random
import shutil
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.plugins.hparams import plugin_data_pb2
from tensorboard.util import tensor_util

from diagnose.parts import RawRun, RawSeries
from diagnose.readers.tensorboard import READER, config, crc, frames, points
from diagnose.readers.tensorboard.log import read_log
from diagnose.readers.tensorboard.numbers import SUMMARIES, integers, numbers

DATA = Path(__file__).parent.parent / "data" / "tensorboard"
SHARED = Path(os.environ.get("DIAGNOSE_SHARED", "/nowhere"))
EXPECTED = json.loads((DATA / "expected.json").read_text())
NAME = "events.out.tfevents.1700000000.host.1.0"
lenient = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


# -- helpers


def record(payload: bytes) -> bytes:
    head = struct.pack("<Q", len(payload))
    return head + struct.pack("<I", crc.masked(crc.checksum(head))) + payload + struct.pack("<I", crc.masked(crc.checksum(payload)))


def scalar(tag: str, step: int, value: float, wall: float = 1.7e9) -> bytes:
    return Event(wall_time=wall, step=step, summary=Summary(value=[Summary.Value(tag=tag, simple_value=value)])).SerializeToString()


def version() -> bytes:
    return Event(wall_time=1.7e9, file_version="brain.Event:2").SerializeToString()


def tensor_event(tag: str, tensor: TensorProto, step: int = 0, plugin: str = "", content: bytes = b"") -> bytes:
    value = Summary.Value(tag=tag, tensor=tensor)
    if plugin:
        value.metadata.CopyFrom(SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name=plugin, content=content)))
    return Event(wall_time=1.7e9 + step, step=step, summary=Summary(value=[value])).SerializeToString()


def text_event(tag: str, text: str, step: int = 0) -> bytes:
    tensor = TensorProto(dtype=7, string_val=[text.encode()], tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)]))
    return tensor_event(tag, tensor, step, "text")


def written(folder: Path, payloads: list[bytes], name: str = NAME) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(b"".join(record(p) for p in payloads))
    return path


def files(folder: Path) -> list[Path]:
    return [p for p in sorted(folder.rglob("*")) if p.is_file() and READER.claims(p)]


def read(*paths: Path) -> RawRun:
    return READER.read(list(paths))


def one(run: RawRun, name: str, group: str = "", source: int = 0) -> RawSeries:
    return next(s for s in run.series if (s.name, s.group, s.source) == (name, group, source))


def pairs(series: RawSeries) -> list[tuple[int, float]]:
    return list(zip(series.steps.tolist(), series.values.tolist(), strict=True))


def everything(run: RawRun) -> dict[str, Any]:
    found = {}
    for s in run.series:
        assert s.times is not None
        columns = (s.steps.tolist(), map(repr, s.values.tolist()), map(repr, s.times.tolist()))
        found[f"{s.source}:{s.group}:{s.name}"] = list(zip(*columns, strict=True))
    return found


def of_tensorboard(path: Path) -> dict[str, list[tuple[int, float, float]]]:
    """Every scalar of one file as TensorBoard's own reader and `tensor_util` give it."""
    accumulator = EventAccumulator(str(path), size_guidance={"scalars": 0, "tensors": 0, "histograms": 0}, purge_orphaned_data=False)
    accumulator.Reload()
    found = {tag: [(e.step, float(e.value), e.wall_time) for e in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]}
    for tag in accumulator.Tags()["tensors"]:
        for event in accumulator.Tensors(tag):
            tensor = event.tensor_proto
            if tensor.dtype in (0, 7) or any(d.size != 1 for d in tensor.tensor_shape.dim):
                continue
            if tensor.dtype == 14:  # tensor_util refuses bfloat16
                bits = tensor.half_val[0] if tensor.half_val else struct.unpack("<H", tensor.tensor_content)[0]
                value = struct.unpack("<f", struct.pack("<I", bits << 16))[0]
            else:
                array = tensor_util.make_ndarray(tensor)
                if not array.size:
                    continue
                value = float(array.reshape(-1)[0])
            found.setdefault(tag, []).append((event.step, value, event.wall_time))
    for tag in accumulator.Tags()["histograms"]:
        for event in accumulator.Histograms(tag):
            h = event.histogram_value
            if h.num > 0:
                mean = h.sum / h.num
                said = {"min": h.min, "max": h.max, "mean": mean, "norm": math.sqrt(h.sum_squares)}
                said["std"] = math.sqrt(max(h.sum_squares / h.num - mean * mean, 0))
                for name, value in said.items():
                    found.setdefault(f"{tag}/{name}", []).append((event.step, value, event.wall_time))
    return found


def ours(path: Path) -> dict[str, list[tuple[int, float, float]]]:
    found = {}
    for raw, steps, times, values in read_log(path).points.series():
        found[raw.decode("utf-8", "replace")] = list(zip(steps.tolist(), values.tolist(), times.tolist(), strict=True))
    return found


def assert_parity(path: Path) -> int:
    theirs, mine = of_tensorboard(path), ours(path)
    mine = {tag: found for tag, found in mine.items() if tag in theirs or tag.rpartition("/")[2] not in SUMMARIES}
    assert set(mine) == set(theirs), path
    for tag, expected in theirs.items():
        np.testing.assert_array_equal(np.array(mine[tag], float), np.array(expected, float), err_msg=f"{path}: {tag}")
    return sum(map(len, theirs.values()))


# -- what the real writers wrote


INTACT = [
    p
    for p in sorted(DATA.rglob("*tfevents*"))
    if p.is_file() and p.stat().st_size and "damaged" not in p.parts and not p.name.endswith(".profile-empty")
]


@pytest.mark.parametrize("path", INTACT, ids=lambda p: str(p.relative_to(DATA)))
def test_every_point_is_the_one_that_tensorboard_reads(path: Path) -> None:
    assert assert_parity(path) > 0


@pytest.mark.skipif(not SHARED.is_dir(), reason="DIAGNOSE_SHARED names the folder of public logs")
def test_every_point_of_public_logs_is_the_one_that_tensorboard_reads() -> None:
    paths = [
        p
        for top in ("real", "faultbench", "fixtures")
        for p in sorted((SHARED / top).rglob("*tfevents*"))
        if p.is_file() and READER.claims(p)
    ]
    paths = [p for p in paths if p.suffix != ".gz" and not read_log(p).problems]  # TensorBoard stops where a record is damaged
    assert len(paths) > 20
    assert sum(assert_parity(p) for p in paths) > 10_000


def test_a_torch_run_reads_as_it_was_written() -> None:
    run = read(*files(DATA / "torch_basic"))
    loss = one(run, "train/loss")
    assert len(loss.steps) == 53
    np.testing.assert_allclose(loss.values[:50], 2 * np.exp(-np.arange(50) / 20), rtol=1e-6)
    assert math.isnan(loss.values[50]) and loss.values[51:].tolist() == [math.inf, -math.inf]
    assert pairs(one(run, "big_int_as_float")) == [(0, 16777216.0)]
    assert pairs(one(run, "no_step")) == [(0, 3.0)]
    assert pairs(one(run, "new_style")) == [(7, 0.5)]
    assert not run.problems
    assert run.facts["framework"] == "pytorch"
    assert "text" not in run.facts.get("not_numeric", ())


def test_series_of_add_scalars_are_folded_into_their_group() -> None:
    run = read(*files(DATA / "torch_basic"))
    assert pairs(one(run, "group/a", source=1)) == [(3, 1.0)]
    assert pairs(one(run, "group/b", source=2)) == [(3, 2.0)]
    assert {READER.home(p) for p in files(DATA / "torch_basic")} == {DATA / "torch_basic"}


def test_hyperparameters_and_yaml_text_become_settings_with_their_place() -> None:
    run = read(*files(DATA / "torch_basic"))
    found = {s.name: s for s in run.settings}
    assert found["bsize"].value == 32 and found["opt"].value == "adamw" and found["lr"].value == 0.001
    assert found["opt"].spelled == "opt" and found["opt"].where.endswith(".3@228")
    assert one(run, "hparam/final_loss", "hp", 3).values.tolist() == [0.25]


def test_restarted_files_stay_two_series_and_a_marked_restart_is_an_event() -> None:
    run = read(*files(DATA / "torch_purge_step"))
    first, second = one(run, "loss"), one(run, "loss", source=1)
    assert len(first.steps) + len(second.steps) == EXPECTED["torch_purge_step"]["raw_rows"]
    assert dict(pairs(first))[14] == 114 and dict(pairs(second))[15] == 215
    assert [(e.kind, e.step) for e in run.events] == [("restart", 15)]
    unmarked = read(*files(DATA / "torch_restart_nopurge"))
    assert sum(len(s.steps) for s in unmarked.series) == EXPECTED["torch_restart_nopurge"]["raw_rows"]
    assert not unmarked.events


def test_the_order_of_the_paths_does_not_matter() -> None:
    paths = files(DATA / "torch_purge_step")
    assert everything(read(*paths)) == everything(read(*reversed(paths)))


def test_tensor_scalars_of_every_kind_in_the_sample_are_numbers() -> None:
    run = read(*files(DATA / "tf2_tensor_scalars"))
    for tag in ("f32_val", "f32_content", "f16_half_val", "bf16_half_val", "bf16_content"):
        assert one(run, tag).values.tolist() == [0.5, 1.5, 2.5, 3.5, 4.5], tag
    assert one(run, "f64_val").values.tolist() == EXPECTED["tf2_tensor_scalars"]["f64_val"]
    assert one(run, "i64_val").values.tolist() == EXPECTED["tf2_tensor_scalars"]["i64_val"]
    assert one(run, "shape1").values.tolist() == [3, 4, 5, 6, 7]
    assert run.clean_end is True


def test_several_values_negative_steps_and_empty_tags_are_kept_raw() -> None:
    run = read(*files(DATA / "multi_value_events"))
    assert [list(p) for p in pairs(one(run, "a"))] == EXPECTED["multi_value_events"]["a_raw"]
    assert pairs(one(run, "neg_step")) == [(-1, 1.0)]
    assert len(one(run, "").steps) == 1


def test_lightnings_placeholder_is_not_data() -> None:
    run = read(*files(DATA / "lightning"))
    assert "hp_metric" not in {s.name for s in run.series}
    assert run.facts["framework"] == "lightning"
    assert {s.name: s.value for s in run.settings} == {"lr": 0.01, "width": 8.0}


# the sample's path was replaced by one of the same length, and the checksum of that one record renewed
def test_hf_writes_its_arguments_as_json_text() -> None:
    run = read(*files(DATA / "hf"))
    found = {s.name: s.value for s in run.settings}
    assert found["learning_rate"] > 0 and "max_grad_norm" in found and "n_embd" in found
    assert run.facts["framework"] == "hf"


def test_deepspeeds_monitor_counts_samples_and_its_job_belongs_to_the_run() -> None:
    paths = files(DATA / "deepspeed")
    run = read(*paths)
    assert {s.axis for s in run.series} == {"samples"} and {s.group for s in run.series} == {""}
    assert run.facts["framework"] == "deepspeed"
    assert {READER.home(p) for p in paths} == {DATA / "deepspeed"}


def test_ten_thousand_points_are_all_kept() -> None:
    series = one(read(*files(DATA / "long_10500")), "loss")
    assert series.values.tolist() == series.steps.tolist() == list(range(10_500))
    assert not series.values.flags.writeable and not series.steps.flags.writeable


# -- damage


@pytest.mark.parametrize(
    ("name", "count", "says"),
    [
        ("clean", 10, ""),
        ("truncated_tail", 9, "35 bytes unread"),
        ("truncated_header", 9, "5 bytes unread"),
        ("bad_data_crc_record4", 9, "wrong checksum"),
        ("bad_length_crc_record4", 9, "42 bytes are no records"),
        ("garbage_between", 10, "9 bytes are no records"),
        ("zero_tail", 10, "64 zero bytes"),
        ("empty", 0, "holds no event"),
    ],
)
def test_a_damaged_file_costs_what_is_damaged_and_says_so(name: str, count: int, says: str) -> None:
    path = DATA / "damaged" / name / NAME
    assert READER.claims(path)
    run = read(path)
    assert sum(len(s.steps) for s in run.series) == count
    assert len(run.problems) == bool(says)
    if says:
        assert says in run.problems[0].what and run.problems[0].where.startswith(str(path))


def test_a_gzip_copy_reads_by_itself_and_not_beside_the_file(tmp_path: Path) -> None:
    packed = DATA / "damaged" / f"gz_{NAME}.gz"
    assert READER.claims(packed) and sum(len(s.steps) for s in read(packed).series) == 10
    shutil.copy(DATA / "damaged" / "clean" / NAME, tmp_path / NAME)
    (tmp_path / f"{NAME}.gz").write_bytes(gzip.compress((tmp_path / NAME).read_bytes()))
    both = read(tmp_path / NAME, tmp_path / f"{NAME}.gz")
    assert sum(len(s.steps) for s in both.series) == 10 and "packed copy" in both.problems[0].what


def test_a_cut_gzip_file_gives_what_can_be_unpacked(tmp_path: Path) -> None:
    whole = gzip.compress(b"".join(record(scalar("a", k, random.random())) for k in range(2000)))
    (tmp_path / f"{NAME}.gz").write_bytes(whole[: len(whole) // 2])
    run = read(tmp_path / f"{NAME}.gz")
    assert 100 < sum(len(s.steps) for s in run.series) < 2000
    assert any("gzip" in p.what for p in run.problems)


def test_names_and_contents_are_recognised(tmp_path: Path) -> None:
    odd = DATA / "odd_names"
    assert not READER.claims(odd / "events.out.tfevents.1700000200.host.profile-empty")
    assert READER.claims(odd / "my.tfevents") and READER.claims(odd / "not_events.log")
    for name, data, mine in [
        ("x.tfevents.1", b"some text that is no event file\n" * 9, False),
        ("a.log", b"step 1 loss 2\n" * 50, False),
        ("y.tfevents", b"\x48\0", True),
        ("z.tfevents", bytes(100), True),
    ]:
        (tmp_path / name).write_bytes(data)
        assert READER.claims(tmp_path / name) is mine, name
    assert not READER.claims(tmp_path) and not READER.claims(tmp_path / "absent.tfevents")


CLEAN = (DATA / "damaged" / "clean" / NAME).read_bytes()


@lenient
@given(cut=st.integers(0, len(CLEAN)), name=st.just("loss"))
def test_any_prefix_reads_as_a_prefix_of_the_points(tmp_path: Path, cut: int, name: str) -> None:
    path = tmp_path / NAME
    path.write_bytes(CLEAN[:cut])
    got = [p for s in read(path).series for p in pairs(s)]
    assert got == [p for s in read(DATA / "damaged" / "clean" / NAME).series for p in pairs(s)][: len(got)]
    assert len(got) >= (cut - 40) // 42 - 1


@pytest.mark.parametrize("source", ["tf2_tensor_scalars", "multi_value_events", "torch_purge_step", "lightning"])
def test_any_prefix_of_a_real_file_reads_as_a_prefix_of_every_series(tmp_path: Path, source: str) -> None:
    whole_path = files(DATA / source)[0]
    data, whole = whole_path.read_bytes(), everything(read(whole_path))
    path = tmp_path / NAME
    for cut in range(0, len(data), 7):
        path.write_bytes(data[:cut])
        for key, got in everything(read(path)).items():
            assert whole[key][: len(got)] == got


def test_any_flipped_byte_costs_one_record_at_most(tmp_path: Path) -> None:
    path = tmp_path / NAME
    whole = one(read(DATA / "damaged" / "clean" / NAME), "loss")
    for at in range(len(CLEAN)):
        for bit in (1, 0x80, 0xFF):
            path.write_bytes(CLEAN[:at] + bytes([CLEAN[at] ^ bit]) + CLEAN[at + 1 :])
            run = read(path)
            got = [p for s in run.series for p in pairs(s)]
            assert len(got) >= 9 and set(got) <= set(pairs(whole)), at
            assert len(run.problems) == 1


@lenient
@given(data=st.data())
def test_inserted_removed_and_overwritten_bytes_cost_their_neighbours_only(tmp_path: Path, data: st.DataObject) -> None:
    body = b"".join(record(scalar("loss", k, float(k))) for k in range(200))
    at = data.draw(st.integers(0, len(body) - 1))
    out, put = data.draw(st.integers(0, 100)), data.draw(st.binary(max_size=100))
    (tmp_path / NAME).write_bytes(body[:at] + put + body[at + out :])
    got = {p for s in read(tmp_path / NAME).series for p in pairs(s)}
    assert got <= {(k, float(k)) for k in range(200)}
    assert len(got) >= 200 - 2 - out // 35 - 1


@lenient
@given(st.binary(max_size=2000))
def test_any_bytes_are_survived(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / NAME
    path.write_bytes(data)
    READER.claims(path)
    READER.home(path)
    read(path)
    path.write_bytes(record(data) + record(scalar("a", 1, 2.0)))
    assert pairs(one(read(path), "a"))[-1] == (1, 2.0)


def test_two_truncated_files_joined_lose_only_the_cut_record(tmp_path: Path) -> None:
    half = b"".join(record(scalar("a", k, float(k))) for k in range(20))
    (tmp_path / NAME).write_bytes(half[:-10] + half)
    assert len(one(read(tmp_path / NAME), "a").steps) == 39


# -- the decoder


VALUES = [0.0, 1.0, -2.5, 3.0, 100.0, math.nan, math.inf, -math.inf]
FLOATS = {1: ("float_val", "<f4"), 2: ("double_val", "<f8"), 19: ("half_val", "<f2")}
INTS = {
    3: ("int_val", "<i4", -7),
    4: ("int_val", "|u1", 200),
    5: ("int_val", "<i2", -300),
    6: ("int_val", "|i1", -5),
    9: ("int64_val", "<i8", -(1 << 40)),
    10: ("bool_val", "|b1", 1),
    17: ("int_val", "<u2", 60000),
    22: ("uint32_val", "<u4", 1 << 31),
    23: ("uint64_val", "<u8", 1 << 63),
}


def shape(*dims: int) -> TensorShapeProto:
    return TensorShapeProto(dim=[TensorShapeProto.Dim(size=d) for d in dims])


@pytest.mark.parametrize("dims", [(), (1,), (1, 1)])
def test_float_tensors_read_alike_as_content_and_as_list(tmp_path: Path, dims: tuple[int, ...]) -> None:
    payloads, expected = [version()], {}
    for dtype, (name, code) in FLOATS.items():
        for step, value in enumerate(VALUES):
            raw = np.array(value, code)
            listed = int(raw.view("<u2")) if name == "half_val" else float(raw)
            payloads.append(tensor_event(f"list{dtype}", TensorProto(dtype=dtype, tensor_shape=shape(*dims), **{name: [listed]}), step))
            payloads.append(
                tensor_event(f"raw{dtype}", TensorProto(dtype=dtype, tensor_shape=shape(*dims), tensor_content=raw.tobytes()), step)
            )
    run = read(written(tmp_path, payloads))
    for dtype in FLOATS:
        np.testing.assert_array_equal(one(run, f"list{dtype}").values, VALUES)
        np.testing.assert_array_equal(one(run, f"raw{dtype}").values, VALUES)
    assert not expected


def test_integer_tensors_read_alike_as_content_and_as_list(tmp_path: Path) -> None:
    payloads = [version()]
    for dtype, (name, code, value) in INTS.items():
        for step in range(10):  # enough for the columns
            payloads.append(tensor_event(f"list{dtype}", TensorProto(dtype=dtype, **{name: [value]}), step, "scalars"))
            payloads.append(tensor_event(f"raw{dtype}", TensorProto(dtype=dtype, tensor_content=np.array(value, code).tobytes()), step))
    run = read(written(tmp_path, payloads))
    for dtype, (_, _, value) in INTS.items():
        assert one(run, f"list{dtype}").values.tolist() == one(run, f"raw{dtype}").values.tolist() == [float(value)] * 10, dtype


def test_bfloat16_and_float8_are_exact() -> None:
    assert numbers("bfloat16", np.array([[0x80, 0x3F], [0xC0, 0x7F]], np.uint8))[0] == 1.0
    e5m2 = numbers("e5m2", np.array([[0x3C], [0x7B], [0x7C]], np.uint8))
    assert e5m2.tolist() == [1.0, 57344.0, math.inf]
    e4m3 = numbers("e4m3", np.array([[0x38], [0x7E], [0x01], [0xB8], [0x7F]], np.uint8))
    assert e4m3[:4].tolist() == [1.0, 448.0, 2.0**-9, -1.0] and math.isnan(e4m3[4])


def test_unpacked_lists_are_read_too(tmp_path: Path) -> None:
    def event(tensor: bytes) -> bytes:
        value = b"\x0a\x01t\x42" + bytes([len(tensor)]) + tensor
        summary = b"\x0a" + bytes([len(value)]) + value
        return b"\x2a" + bytes([len(summary)]) + summary

    for tensor, value in [
        (b"\x08\x01\x2d" + struct.pack("<f", 2.5), 2.5),
        (b"\x08\x09\x50\x96\x01", 150.0),
        (b"\x08\x13\x68\x80\x78", 1.0),
    ]:
        assert one(read(written(tmp_path, [event(tensor)] * 9)), "t").values.tolist() == [value] * 9


def test_tensors_that_are_no_numbers_are_named_not_read(tmp_path: Path) -> None:
    curve = tensor_event("pr", TensorProto(dtype=1, tensor_shape=shape(6, 4), float_val=[0.5] * 24), plugin="pr_curves")
    image = Event(
        summary=Summary(value=[Summary.Value(tag="img", image=Summary.Image(height=1, encoded_image_string=b"x"))])
    ).SerializeToString()
    run = read(written(tmp_path, [curve, image, scalar("a", 1, 1.0)]))
    assert [s.name for s in run.series] == ["a"]
    assert set(run.facts["not_numeric"]) == {"pr", "img"}


FLOAT32 = st.floats(width=32)
TAGS = st.sampled_from(["", "a", "b", "train/loss", "train/loss_", "läßt", "t" * 130])
INT64 = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(0, 300))


@st.composite
def some_value(draw: st.DrawFn) -> Summary.Value:  # noqa: PLR0911 - one a kind
    tag, kind = draw(TAGS), draw(st.integers(0, 6))
    if kind == 0:
        return Summary.Value(tag=tag, simple_value=draw(FLOAT32))
    if kind == 1:
        return Summary.Value(tag=tag, tensor=TensorProto(dtype=2, double_val=[draw(st.floats())]))
    if kind == 2:
        return Summary.Value(tag=tag, tensor=TensorProto(dtype=9, int64_val=[draw(INT64)]))
    if kind == 3:
        return Summary.Value(
            tag=tag, tensor=TensorProto(dtype=1, tensor_content=struct.pack("<f", draw(FLOAT32))), metadata=SummaryMetadata(data_class=1)
        )
    if kind == 4:
        return Summary.Value(tag=tag, tensor=TensorProto(dtype=14, half_val=[draw(st.integers(0, 65535))]))
    if kind == 5:
        return Summary.Value(
            tag=tag, histo=HistogramProto(min=-1, max=1, num=2, sum=0.5, sum_squares=2, bucket_limit=[0, 1], bucket=[1, 1])
        )
    return Summary.Value(tag=tag)


@lenient
@given(
    st.lists(st.tuples(st.one_of(st.floats(), st.just(0.0)), INT64, st.lists(some_value(), max_size=3)), max_size=12),
    st.integers(1, 8),
)
def test_columns_equal_the_parser_of_single_records(
    tmp_path: Path, events: list[tuple[float, int, list[Summary.Value]]], times: int
) -> None:
    payloads = [Event(wall_time=w, step=s, summary=Summary(value=v)).SerializeToString() for w, s, v in events] * times
    path = written(tmp_path, payloads)
    fast = everything(read(path))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(points, "_FEW", 1 << 40)
        assert everything(read(path)) == fast
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames, "WINDOW", 600)
        patch.setattr(crc, "_native", None)
        assert everything(read(path)) == fast


def test_steps_and_times_of_any_size_are_kept(tmp_path: Path) -> None:
    steps = [0, 1, 127, 128, 2**31, 2**63 - 1, -1, -(2**63)]
    run = read(written(tmp_path, [scalar("a", s, float(k), wall=math.nan if k == 2 else k * 1e9) for k, s in enumerate(steps)]))
    series = one(run, "a")
    assert series.steps.tolist() == steps and series.values.tolist() == list(range(8))
    assert series.times is not None and math.isnan(series.times[2]) and series.times[3] == 3e9


@given(st.lists(INT64, min_size=1, max_size=9))
def test_varints_read_as_protobuf_writes_them(values: list[int]) -> None:
    for value in values:
        raw = Event(step=value).SerializeToString()[1:] or b"\0"
        assert integers(np.frombuffer(raw, np.uint8).reshape(1, -1)).view(np.int64).tolist() == [value]


@given(st.lists(st.binary(max_size=40), max_size=20), st.integers(0, 10**6), st.booleans())
def test_one_checksum_of_a_window_finds_any_wrong_bit(payloads: list[bytes], at: int, native: bool) -> None:
    body = bytearray(b"".join(record(p) for p in payloads))
    lengths = np.array([len(p) for p in payloads], np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths + 16)[:-1]]).astype(np.int64)[: len(payloads)]
    with pytest.MonkeyPatch.context() as patch:
        if not native:
            patch.setattr(crc, "_native", None)
        assert crc.all_agree(np.frombuffer(bytes(body), np.uint8), starts, lengths)
        if body:
            body[at % len(body)] ^= 1 << (at % 8)
            assert not crc.all_agree(np.frombuffer(bytes(body), np.uint8), starts, lengths)


def test_checksums_are_those_of_the_published_examples() -> None:
    assert crc.checksum(b"123456789") == crc._slow(b"123456789") == 0xE3069283
    assert crc.masked(crc.checksum(b"\x1a\x11CRC test, one two")) == 0x5794D08A
    assert crc.ZERO_LENGTH == 0x07980329


def test_windows_smaller_than_a_record_lose_that_record_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "WINDOW", 256)
    big = text_event("samples", "x" * 3000)
    path = written(tmp_path, [scalar("a", 0, 0.0), scalar("a", 1, 1.0), big, *(scalar("a", k, float(k)) for k in range(2, 40))])
    run = read(path)
    assert one(run, "a").values.tolist() == list(range(40))
    assert [p.what for p in run.problems] == [f"a record of {len(big)} bytes is not looked into"]


# -- histograms


def test_a_histograms_own_sums_are_kept_and_its_zeros_told(tmp_path: Path) -> None:
    histo = HistogramProto(min=-2, max=4, num=10, sum=6, sum_squares=40, bucket_limit=[-1, 0, 1e-12, 5], bucket=[2, 0, 3, 5])
    wide = HistogramProto(min=-2, max=4, num=10, sum=6, sum_squares=40, bucket_limit=[-1, 1, 5], bucket=[2, 3, 5])
    run = read(
        written(
            tmp_path,
            [
                Event(step=3, summary=Summary(value=[Summary.Value(tag=t, histo=h)])).SerializeToString()
                for t, h in (("w", histo), ("v", wide))
            ],
        )
    )
    got = {s.name: s.values.tolist() for s in run.series}
    assert got["w/min"] == [-2] and got["w/max"] == [4] and got["w/mean"] == [0.6] and got["w/zeros"] == [0.3]
    assert got["w/norm"] == [math.sqrt(40)] and got["w/std"] == [pytest.approx(math.sqrt(4 - 0.36))]
    assert "v/zeros" not in got


def test_a_bucket_table_gives_its_moments_from_the_centres(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(1.0, 2.0, 5000)
    held, edges = np.histogram(values, 30)
    table = np.stack([edges[:-1], edges[1:], held], axis=1)
    tensor = TensorProto(dtype=2, tensor_shape=shape(30, 3), tensor_content=table.astype("<f8").tobytes())
    got = {s.name: s.values[0] for s in read(written(tmp_path, [tensor_event("w", tensor, 5, "histograms")])).series}
    assert got["w/min"] == values.min() and got["w/max"] == values.max()
    assert got["w/mean"] == pytest.approx(values.mean(), abs=0.05) and got["w/std"] == pytest.approx(values.std(), rel=0.02)
    assert got["w/norm"] == pytest.approx(np.linalg.norm(values), rel=0.02) and "w/zeros" not in got


# -- settings


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            '{"lr": 1e-3, "opt": {"name": "adamw", "betas": [0.9, 0.95]}, "x": null}',
            {"lr": 1e-3, "opt.name": "adamw", "opt.betas": [0.9, 0.95], "x": None},
        ),
        ("<pre>{&quot;lr&quot;: 0.1}</pre>", {"lr": 0.1}),
        ("```yaml\nlr: 1e-3\nopt:\n  name: sgd\n```", {"lr": 1e-3, "opt.name": "sgd"}),
        (
            "|param|value|\n|-|-|\n|learning_rate|0.00025|\n|cuda|True|\n|env|CartPole-v1|",
            {"learning_rate": 0.00025, "cuda": True, "env": "CartPole-v1"},
        ),
        ("Namespace(lr=0.1, path=PosixPath('a'), name='x', n=None)", {"lr": 0.1, "path": "PosixPath('a')", "name": "x", "n": None}),
        ("{'lr': 0.1, 'sizes': (1, 2)}", {"lr": 0.1, "sizes": [1, 2]}),
        ("lr = 0.1  \nseed = 3", {"lr": 0.1, "seed": 3}),
        ("layers:\n- {n: 1}\n- {n: 2}", {"layers.0.n": 1, "layers.1.n": 2}),
    ],
)
def test_configuration_texts_of_every_form_are_read(text: str, expected: dict[str, Any]) -> None:
    assert config.of_text(text) == expected


def test_a_configuration_that_cannot_be_parsed_is_an_event(tmp_path: Path) -> None:
    run = read(
        written(
            tmp_path, [text_event("config/text_summary", "see the wiki, as always", 4), text_event("sample/text_summary", "once: upon")]
        )
    )
    assert [(e.kind, e.says, e.step) for e in run.events] == [("config", "config: see the wiki, as always", 4)]
    assert not run.settings and run.facts["not_numeric"] == ["sample/text_summary"]


def test_arguments_written_one_by_one_are_settings(tmp_path: Path) -> None:
    texts = {f"arg_{k}": str(k) for k in range(30)} | {"lr": "0.00015", "bf16": "True", "config": "lr_max: 3"}
    run = read(written(tmp_path, [text_event(f"{k}/text_summary", v) for k, v in texts.items()]))
    found = {s.name: s.value for s in run.settings}
    assert found["lr"] == 0.00015 and found["bf16"] is True and found["arg_7"] == 7 and found["lr_max"] == 3


def test_a_later_file_changes_a_setting_and_says_so(tmp_path: Path) -> None:
    one_, two = (
        written(tmp_path, [text_event("config/text_summary", f"lr: {lr}")], f"events.out.tfevents.170000000{k}.h")
        for k, lr in ((0, 0.1), (1, 0.2))
    )
    run = read(one_, two)
    assert [(s.name, s.value) for s in run.settings] == [("lr", 0.2)]
    assert [e.says for e in run.events] == ["lr was 0.1 and is 0.2 in events.out.tfevents.1700000001.h"]


def test_nested_hyperparameters_are_read(tmp_path: Path) -> None:
    data = plugin_data_pb2.HParamsPluginData()
    data.session_start_info.hparams["lr"].number_value = 0.5
    data.session_start_info.hparams["fast"].bool_value = True
    data.session_start_info.hparams["o"].struct_value.update({"name": "sgd"})
    event = tensor_event(
        "_hparams_/session_start_info", TensorProto(dtype=1, tensor_shape=shape(0)), 0, "hparams", data.SerializeToString()
    )
    run = read(written(tmp_path, [event]))
    assert {s.name: s.value for s in run.settings} == {"lr": 0.5, "fast": True, "o.name": "sgd"}
    assert not run.facts.get("not_numeric")


def test_hostile_configurations_stay_small() -> None:
    bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"{chr(98 + k)}: &{chr(98 + k)} [{', '.join(['*' + chr(97 + k)] * 9)}]\n" for k in range(8)
    )
    began = time.perf_counter()
    assert len(config.of_text(bomb) or {}) <= 5000
    for text in ("[" * 20_000, "{" * 20_000, "f(" + "-" * 20_000 + "1)", "a: " + "[" * 5000, "|" * 50_000, '{"a":' * 5000):
        config.of_text(text)
    assert time.perf_counter() - began < 20


# -- directories


@pytest.mark.parametrize(
    ("folder", "home", "group", "rank"),
    [
        ("run", "run", "", None),
        ("run/train", "run", "train", None),
        ("run/validation", "run", "validation", None),
        ("run/eval", "run", "eval", None),
        ("run/rank_3", "run", "", 3),
        ("run/train/rank-12", "run", "train", 12),
        ("run/tensorboard", "run", "", None),
        ("run/tb/job", "run", "", None),
        ("run/version_0", "run/version_0", "", None),
    ],
)
def test_sub_directories_belong_to_the_run_above(tmp_path: Path, folder: str, home: str, group: str, rank: int | None) -> None:
    path = written(tmp_path / folder, [version(), scalar("loss", 1, 2.0)])
    assert READER.home(path) == tmp_path / home
    series = read(path).series[0]
    assert (series.name, series.group, series.rank) == ("loss", group, rank)


def test_two_jobs_beside_each_other_are_two_runs(tmp_path: Path) -> None:
    paths = [written(tmp_path / "tb" / job, [scalar("loss", 1, 2.0)]) for job in ("a", "b")]
    assert [READER.home(p) for p in paths] == [p.parent for p in paths]


def test_names_of_one_second_are_ordered_by_their_first_wall_time(tmp_path: Path) -> None:
    late = written(tmp_path, [scalar("a", 5, 1.0, wall=1700000009.0)], "events.out.tfevents.1700000000.host.10.0")
    early = written(tmp_path, [scalar("a", 1, 1.0, wall=1700000001.0)], "events.out.tfevents.1700000000.host.9.0")
    assert [s.path for s in read(late, early).sources] == [str(early), str(late)]


def test_session_marks_are_events(tmp_path: Path) -> None:
    start = Event(step=0, session_log=SessionLog(status=SessionLog.START)).SerializeToString()
    again = Event(step=7, session_log=SessionLog(status=SessionLog.START)).SerializeToString()
    run = read(
        written(tmp_path, [start, scalar("a", 1, 1.0), again, Event(session_log=SessionLog(status=SessionLog.STOP)).SerializeToString()])
    )
    assert [(e.kind, e.step) for e in run.events] == [("restart", 7), ("exit", 0)] and run.clean_end is True


def test_reading_twice_is_equal_and_needs_neither_tensorboard_nor_protobuf() -> None:
    paths = files(DATA / "torch_basic")
    assert everything(read(*paths)) == everything(read(*paths))
    import subprocess
    import sys

    code = "import sys; import diagnose.readers.tensorboard; bad = {m.split('.')[0] for m in sys.modules} & {'tensorboard', 'google', 'yaml', 'pandas', 'scipy'}; sys.exit(str(bad) if bad else 0)"  # noqa: E501
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False).returncode == 0


# -- time


def test_time_is_linear_and_hostile_bytes_do_not_hang(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    head = struct.pack("<Q", 1 << 22)
    huge = head + struct.pack("<I", crc.masked(crc.checksum(head)))
    cases = {
        "random": rng.bytes(4 << 20),
        "zeros": bytes(4 << 20),
        "tiny": record(b"") * (1 << 17),
        "broken": (record(b"")[:-1] + b"\xff") * (1 << 16),
        "headers that overlap": huge * (1 << 18),
        "every second is broken": (record(scalar("a", 1, 1.0)) + bytes([7] * 20)) * 20_000,
        "many tags": b"".join(record(scalar(f"tag{k:06}", 1, 1.0)) for k in range(20_000)),
    }
    for name, data in cases.items():
        (tmp_path / NAME).write_bytes(data)
        began = time.perf_counter()
        read(tmp_path / NAME)
        assert time.perf_counter() - began < 15, name
