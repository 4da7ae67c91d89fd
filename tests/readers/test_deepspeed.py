"""DeepSpeed consoles: what the real library wrote, old lines, other programs' lines in between, and damaged files."""

from __future__ import annotations

import math
import os
import pickle
import random
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnose import registry
from diagnose.parts import RawRun, RawSeries
from diagnose.readers.deepspeed import READER
from diagnose.transcript import transcribe

DATA = Path(__file__).parent.parent / "data" / "deepspeed"
SHARED = Path(os.environ.get("DIAGNOSE_SHARED", "/nowhere"))
CHAT = "real/deepspeed/microsoft__DeepSpeedExamples/applications/DeepSpeed-Chat/training"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="DIAGNOSE_SHARED names the folder of public logs")


def read(*paths: Path) -> RawRun:
    """As a run is read: DeepSpeed's dialect with whatever else the text speaks and, as DeepSpeed is partial, the general ones."""
    known = registry.readers().found
    others = [r for r in known if r.dialect and r is not READER and (r.fallback or any(r.claims(p) for p in paths))]
    return transcribe(paths, [READER, *others])


def run(name: str) -> RawRun:
    return read(DATA / name / "console.log")


def text_run(tmp_path: Path, text: str, name: str = "train.log") -> RawRun:
    path = tmp_path / name
    path.write_text(text)
    return read(path)


def one(found: RawRun, name: str, group: str = "", axis: str = "step") -> RawSeries:
    return next(s for s in found.series if (s.name, s.group, s.axis) == (name, group, axis))


def setting(found: RawRun, name: str) -> object:
    return next(s.value for s in found.settings if s.name == name)


def kinds(found: RawRun) -> Counter[str]:
    return Counter(e.kind for e in found.events)


# --- written by DeepSpeed 0.19.8 ---


@pytest.mark.parametrize("name", sorted(p.name for p in DATA.glob("v*")))
def test_a_console_with_log_level_info_is_claimed_and_read_without_problems(name: str) -> None:
    assert READER.claims(DATA / name / "console.log")
    found = run(name)
    assert not found.problems
    times = [s for s in found.series if s.name == "time (ms)/fwd"]
    assert sum(len(s.steps) for s in times) == (40 if "rerun" in name else 20)
    losses = one(found, "loss")
    assert sorted(set(losses.steps.tolist())) == list(range(20))
    assert not losses.values.flags.writeable


@pytest.mark.parametrize("name", sorted(p.name for p in DATA.glob("v*") if "defaultlog" not in p.name and "rerun" not in p.name))
def test_progress_comes_every_five_steps_and_the_line_at_initialisation_is_no_step(name: str) -> None:
    found = run(name)
    assert one(found, "skipped").steps.tolist() == [5, 10, 15, 20]
    assert one(found, "lr").values[-1] == pytest.approx(0.01)
    assert one(found, "RunningAvgSamplesPerSec").steps.tolist() == [5, 10, 15, 20]
    assert one(found, "time (ms)/fwd").steps.tolist() == list(range(1, 21))
    assert setting(found, "train_batch_size") == 8 and setting(found, "gradient_accumulation_steps") == 2
    assert setting(found, "scheduler.params.warmup_num_steps") == 10
    assert found.facts["world_size"] == 1


def test_the_default_log_level_leaves_only_prints() -> None:
    found = run("v0.19.8_z1_fp32_defaultlog")
    assert "skipped" not in {s.name for s in found.series} and kinds(found)["overflow"] == 0
    assert len(one(found, "time (ms)/fwd", axis="row").steps) == 20


def test_an_fp16_overflow_names_scale_and_hysteresis() -> None:
    found = run("v0.19.8_z2_fp16")
    (event,) = [e for e in found.events if e.kind == "overflow"]
    assert (event.step, event.rank, dict(event.numbers)) == (11, 0, {"scale": 131072.0, "new_scale": 131072.0, "hysteresis": 1.0})
    assert one(found, "skipped").values.tolist() == [0, 0, 1, 1]
    assert one(found, "loss scale").values.tolist() == [131072.0]
    norms = one(found, "grad_norm")
    assert norms.steps.tolist() == list(range(1, 20)) and math.isinf(norms.values[10])
    assert setting(found, "zero_optimization.stage") == 2 and setting(found, "fp16.initial_scale_power") == 16
    assert setting(found, "float16_config.loss_scale_window") == 5 and setting(found, "mom") == [0.9, 0.999]
    where = next(s.where for s in found.settings if s.name == "gradient_clipping")
    assert "gradient_clipping" in (DATA / "v0.19.8_z2_fp16" / "console.log").read_text().splitlines()[int(where.split(":")[1]) - 1]


def test_a_bf16_overflow_has_no_scale_and_the_step_it_happened_in() -> None:
    found = run("v0.19.8_z2_bf16_nan")
    (event,) = [e for e in found.events if e.kind == "overflow"]
    assert event.step == 11 and not event.numbers and one(found, "skipped").values[-1] == 1


def test_the_unfused_optimizer_says_its_iteration() -> None:
    found = run("v0.19.8_z0_fp16_nan")
    (event,) = [e for e in found.events if e.kind == "overflow"]
    assert event.step == 11 and dict(event.numbers) == {"iteration": 10.0, "scale": 131072.0, "new_scale": 65536.0}
    assert one(found, "skipped").values[-1] == 1
    assert one(found, "loss scale").values.tolist() == [131072.0, 131072.0, 131072.0]


def test_fp32_trains_on_with_nan_and_says_nothing() -> None:
    found = run("v0.19.8_z0_fp32_nan")
    assert kinds(found)["overflow"] == 0 and one(found, "skipped").values.max() == 0
    losses = one(found, "loss")
    assert np.isnan(losses.values[losses.steps > 10]).all() and np.isfinite(losses.values[:10]).all()


def test_a_rerun_in_the_same_file_is_a_restart() -> None:
    found = run("v0.19.8_z1_fp32_rerun_same_dir")
    assert one(found, "skipped").steps.tolist() == [5, 10, 15, 20] * 2
    assert kinds(found)["restart"] == 1


def test_the_comms_logger_gives_totals_and_the_summary_table() -> None:
    found = run("v0.19.8_z2_fp16")
    table = {e.says: e.numbers for e in found.events if e.says.startswith("summary: ")}
    assert table["summary: all_reduce 1.13 KB"] == {
        "count": 40, "total_ms": 166.5, "avg_ms": 4.19, "algbw_gbps": 0.01, "busbw_gbps": 0.0, "msg_bytes": 1.13 * 1024
    }  # fmt: skip
    assert len(one(found, "comm op/all_reduce/time (ms)", axis="row").steps) == 79


# --- lines of all ages ---


def test_every_age_of_line_is_known() -> None:
    found = read(DATA / "deepspeed_variants.log")
    assert kinds(found)["overflow"] == 6
    assert sum("hysteresis" in e.numbers for e in found.events) == 1
    assert one(found, "SamplesPerSec", axis="iteration").steps.tolist() == [21]
    assert one(found, "loss").values.tolist() == [2.3456] and one(found, "samples/sec").values.tolist() == [62.5]
    assert one(found, "time (ms)/optimizer_step", axis="row").values.tolist() == [937.01]
    wrapped = [e for e in found.events if e.kind == "overflow"][-1]
    assert wrapped.numbers["scale"] == 8192 and wrapped.numbers["new_scale"] == 4096


def test_megatron_lines_without_a_loss_are_nan_unless_all_was_skipped() -> None:
    found = read(DATA / "megatron_mds.log")
    losses = one(found, "lm loss")
    assert losses.steps.tolist() == list(range(20, 201, 10))
    assert losses.steps[np.isnan(losses.values)].tolist() == [150, 160]
    assert one(found, "lm loss value", "validation").values.tolist() == [2.738765]
    assert one(found, "tokens per gpu per second (tgs)").values[0] == 10084.8
    assert np.isnan(one(found, "grad norm").values).sum() == 2
    assert setting(found, "clip_grad") == 1.0 and setting(found, "lr") == 0.0001
    assert kinds(found)["eval"] == 1


HEADER = "[2024-05-01 10:00:{:02d},000] [INFO] [x.py:1:f] "


def test_moe_timers_in_brackets_are_read(tmp_path: Path) -> None:
    text = "[Rank 0] time (ms) | fwd: 1.0 (fwd_moe: 0.5, 1st_a2a: 0.1, 2nd_a2a: 0.2, top_k: 0.3)\n"
    names = {s.name: s.values[0] for s in text_run(tmp_path, text).series}
    assert names == {f"time (ms)/{k}": v for k, v in (("fwd", 1), ("fwd_moe", 0.5), ("1st_a2a", 0.1), ("2nd_a2a", 0.2), ("top_k", 0.3))}


def test_the_scale_guard_ends_a_run(tmp_path: Path) -> None:
    text = (
        HEADER.format(0) + "[Rank 0] step=10, skipped=9, lr=[1e-3], mom=[(0.9, 0.95)]\n"
        "Traceback (most recent call last):\n  File \"t.py\", line 1, in <module>\n    engine.step()\n"
        "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.\n"
        + HEADER.format(9) + "Killing subprocess 12\n" + HEADER.format(9) + "['python', 't.py'] exits with return code = 1\n"
    )  # fmt: skip
    found = text_run(tmp_path, text)
    assert [(e.kind, e.step) for e in found.events] == [("scale-floor", 10), ("traceback", 10), ("exit", 10)]
    assert found.clean_end is False and found.events[-1].numbers == {"exit_code": 1.0}


def test_each_ranks_errors_are_kept_with_their_place_and_the_launchers_is_not(tmp_path: Path) -> None:
    text = ""
    for rank in (1, 0):
        for line in ("Traceback (most recent call last):", '  File "t.py", line 3, in f', "    x()", f"RuntimeError: rank {rank} fell"):
            text += f"[rank{rank}]: {line}\n"
    text += "[rank1]: Traceback (most recent call last):\n[rank1]: RuntimeError: rank 1 fell\n"
    text += 'Traceback (most recent call last):\n  File "run.py"\ntorch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n'
    found = text_run(tmp_path, text)
    assert [(e.rank, e.says) for e in found.events] == [
        (1, "RuntimeError: rank 1 fell (at t.py:3)"),
        (0, "RuntimeError: rank 0 fell (at t.py:3)"),
    ]


def test_out_of_memory_says_how_much_was_asked(tmp_path: Path) -> None:
    text = (
        'Traceback (most recent call last):\n  File "t.py"\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0\n'
    )
    found = text_run(tmp_path, text)
    assert kinds(found) == {"oom": 1, "traceback": 1} and found.events[0].numbers == {"tried_gib": 2.5}


def test_checkpoints_and_resumes_are_events_once_a_step(tmp_path: Path) -> None:
    said = [
        "[Torch] Loading checkpoint from out/global_step40/mp_rank_00_model_states.pt...",
        "[Torch] Loading checkpoint from out/global_step40/zero_pp_rank_0.pt...",
        "[Rank 0] step=50, skipped=0, lr=[1e-3], mom=[(0.9, 0.95)]",
        "[Rank 0] Saving model checkpoint: out/global_step50/mp_rank_00_model_states.pt",
        "zero checkpoint saved out/global_step50/zero_pp_rank_0_mp_rank_00_optim_states.pt",
        "Did not save the model output_dir/pytorch_model.bin because x is False",
    ]
    found = text_run(tmp_path, "".join(HEADER.format(i) + s + "\n" for i, s in enumerate(said)))
    assert [(e.kind, e.step) for e in found.events] == [("resume", 40), ("checkpoint", 50)]


def test_ranks_that_print_one_overflow_count_once_and_steps_in_a_row_count_each(tmp_path: Path) -> None:
    said = [
        f"[deepspeed] OVERFLOW! Rank {r} Skipping step. Attempted loss scale: {s}, reducing to {s / 2}" for s in (8, 4) for r in range(4)
    ]
    again = ["[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 1, reducing to 1"] * 3
    found = text_run(tmp_path, "".join(HEADER.format(i // 4) + s + "\n" for i, s in enumerate([*said, *again])))
    assert [(e.step, e.numbers["scale"]) for e in found.events] == [(1, 8), (2, 4), (3, 1), (4, 1), (5, 1)]


def test_a_logged_loss_scale_is_not_mixed_with_that_of_overflow_lines(tmp_path: Path) -> None:
    text = HEADER.format(0) + "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 8, reducing to 4\n"
    assert one(text_run(tmp_path, text), "loss scale").values.tolist() == [8.0]
    text += " iteration 10/ 100 | lm loss: 2.0 | loss scale: 4.0 | grad norm: 0.000 |\n"
    assert one(text_run(tmp_path, text), "loss scale").values.tolist() == [4.0]


def test_two_engines_are_told_apart_by_alternation(tmp_path: Path) -> None:
    said = [f"[Rank 0] step={s}, skipped={k}, lr=[{lr}], mom=[[0.9, 0.95]]" for s in (10, 20, 30) for k, lr in ((4, 1e-3), (2, 5e-4))]
    found = text_run(tmp_path, "".join(HEADER.format(i) + s + "\n" for i, s in enumerate(said)))
    assert one(found, "skipped").values.tolist() == [4, 4, 4] and one(found, "skipped", "engine_1").values.tolist() == [2, 2, 2]


def test_parameter_groups_that_differ_are_series_of_their_own(tmp_path: Path) -> None:
    said = [f"[Rank 0] step={s}, skipped=0, lr=[0.1, tensor(0.{s}, device='cuda:0'), 0.1], mom=[]" for s in (1, 2, 3)]
    found = text_run(tmp_path, "".join(HEADER.format(i) + s + "\n" for i, s in enumerate(said)))
    assert {s.name for s in found.series} == {"skipped", "lr", "lr[1]"}
    assert one(found, "lr[1]").values.tolist() == [0.1, 0.2, 0.3]


def test_trainer_rows_take_the_step_of_the_bar(tmp_path: Path) -> None:
    text = " 14%|█ | 380/2724 [14:02:33<86:01:24, 132.12s/it]\n{'loss': '2.0491', 'grad_norm': nan, 'epoch': 0.28}\n"
    found = text_run(tmp_path, text)
    assert one(found, "loss").steps.tolist() == [380] and math.isnan(one(found, "grad_norm").values[0])


def test_what_is_read_crosses_process_borders() -> None:
    found = pickle.loads(pickle.dumps(run("v0.19.8_z2_fp16")))
    assert len(found.series) == len(run("v0.19.8_z2_fp16").series)


# --- what is not ours ---


@pytest.mark.parametrize("name", ["x.py", "x.html", "ds_config.json", "log.csv"])
def test_files_that_quote_logs_are_not_claimed(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes((DATA / "deepspeed_variants.log").read_bytes())
    assert not READER.claims(path)


@pytest.mark.parametrize("raw", [b"", b"\0" * 100, b":W&B" + b"x" * 99, b"step 1 loss 2\n" * 99, b"\xff\xfe"])
def test_other_files_are_not_claimed(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(raw)
    assert not READER.claims(path) and not READER.claims(tmp_path) and not READER.claims(tmp_path / "none")


@pytest.mark.parametrize(
    ("a", "b", "same"), [("rank_0.log", "rank_1.log", True), ("train.log", "train.log.1", True), ("a.out", "b.out", False)]
)
def test_files_of_one_run_share_a_key(a: str, b: str, same: bool) -> None:
    assert (READER.key(Path(a)) == READER.key(Path(b))) is same


# --- promises ---


def points(found: RawRun) -> dict[tuple[str, str, int | None], list[str]]:
    """Values by name; steps are left out, since timers move from rows to steps when the last anchor is seen."""
    return {(s.name, s.group, s.rank): [repr(v) for v in s.values.tolist()] for s in found.series}


WHOLE = {
    name: (DATA / name).read_bytes() for name in ("v0.19.8_z2_fp16/console.log", "v0.19.8_z0_fp16_nan/console.log", "megatron_mds.log")
}


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(sorted(WHOLE)), st.floats(0, 1))
def test_a_truncated_log_reads_as_a_shorter_one(tmp_path_factory: pytest.TempPathFactory, name: str, share: float) -> None:
    """Apart from the last line, which may be cut in a number, and mined names that have not recurred yet (they are absent)."""
    raw = WHOLE[name][: int(share * len(WHOLE[name]))]
    path = tmp_path_factory.mktemp("t") / "x.log"
    path.write_bytes(raw)
    shorter, whole = points(read(path)), points(read(DATA / name))
    for key, values in shorter.items():
        known = whole.get(key, values[:-1])
        assert values[:-1] == known[: len(values) - 1]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0\x08\x1b"), min_size=1, max_size=40), min_size=1, max_size=20)
)
def test_foreign_lines_in_between_cost_nothing(tmp_path_factory: pytest.TempPathFactory, foreign: list[str]) -> None:
    """Foreign text without digits: with them it may be a metric of the script."""
    lines = (DATA / "v0.19.8_z1_fp32" / "console.log").read_text().splitlines()
    rng = random.Random(len(foreign))
    mixed = [x for line in lines for x in ([] if rng.random() < 0.8 else [rng.choice(foreign)]) + [line]]
    mixed = [m for m in mixed if m in lines or not any(c.isdigit() for c in m)]
    path = tmp_path_factory.mktemp("t") / "x.log"
    path.write_text("\n".join(mixed), encoding="utf-8")
    assert points(read(path)) == points(run("v0.19.8_z1_fp32"))


def test_reading_twice_is_equal() -> None:
    assert points(run("v0.19.8_z2_fp16")) == points(run("v0.19.8_z2_fp16"))
    assert run("v0.19.8_z2_fp16").events == run("v0.19.8_z2_fp16").events


HOSTILE = [
    "a",
    " ",
    "[",
    "step=1, skipped=0, lr=[",
    "0.1, ",
    "a b=1s ",
    "OVERFLOW! ",
    "comm op: a ",
    "{'loss': ",
    "| a: 1 ",
    "[1,",
    "a=(",
    " --a 1",
    "1/1 [",
]


@pytest.mark.parametrize("unit", HOSTILE)
@pytest.mark.parametrize(
    "lead", ["", "cmd = ", "time (ms) | ", "iteration 1/ 1 |", "[2024-01-01 00:00:00,000] [INFO] [config.py:1:print]   x ... "]
)
def test_hostile_lines_stay_linear(tmp_path: Path, lead: str, unit: str) -> None:
    path = tmp_path / "x.log"
    path.write_text(lead + unit * (1_000_000 // len(unit)) + "\n")
    start = time.perf_counter()
    READER.claims(path)
    read(path)
    assert time.perf_counter() - start < 2.0  # seconds; a quadratic pattern takes minutes


# --- public logs ---


def chat(part: str) -> RawRun:
    (path,) = (SHARED / CHAT / part).glob("*/*.log")
    assert READER.claims(path)
    return read(path)


@needs_shared
def test_step_1_skips_139_of_7360_steps() -> None:
    found = chat("step1_supervised_finetuning")
    assert kinds(found)["overflow"] == 139 == one(found, "skipped").values[-1]
    assert one(found, "skipped").steps[-1] == 7360 and len(one(found, "ppl", "eval").steps) == 17
    assert found.clean_end is True and not found.problems


@needs_shared
@pytest.mark.parametrize(("part", "overflows"), [("step2_reward_model_finetuning", 20), ("step2_dpo_finetuning", 21)])
def test_sixteen_ranks_print_each_overflow_and_it_counts_once(part: str, overflows: int) -> None:
    found = chat(part)
    assert kinds(found)["overflow"] == overflows == one(found, "skipped").values[-1]


@needs_shared
def test_step_3_has_two_engines_of_47_lines() -> None:
    found = chat("step3_rlhf_finetuning")
    assert len(one(found, "skipped").steps) == len(one(found, "skipped", "engine_1").steps) == 47
    assert len(one(found, "act_loss").steps) == len(one(found, "average reward score").steps) == 477
    assert kinds(found)["overflow"] == 14


@needs_shared
def test_every_public_deepspeed_log_is_survived() -> None:
    for path in sorted((SHARED / "real/deepspeed").rglob("*.*")):
        if path.is_file():
            read(path)


@needs_shared
@pytest.mark.parametrize("name", ["r23708d5", "r7892b7f", "r9beb8d0", "rae9ec1e", "re24cda6"])
def test_benchmark_consoles_give_their_losses(name: str) -> None:
    path = SHARED / "faultbench/runs" / name / "train.log"
    found = read(path)
    assert READER.claims(path) and len(one(found, "loss").steps) == len(one(found, "lr").steps) in (60, 70)
