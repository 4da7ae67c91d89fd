"""What is no training log, or a broken one, through the command line: one sentence that names it, exit code 3, no traceback."""

from __future__ import annotations

import io
import os
import stat
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from diagnose import cli

HEALTHY = "".join(f'{{"step": {i}, "loss": {4.0 - i / 200:.4f}, "grad_norm": {0.8 + i % 7 / 50:.4f}}}\n' for i in range(1, 201))
PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x08\x06\x00\x00\x00\x1f\x15\xc4\x89"
ELF = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00\x3e\x00" + bytes(range(256)) * 4
PDF = b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj\n<< /Type /Catalog /Pages 2 0 R >>\nendobj\nxref\n0 2\n0000000000 65535 f \ntrailer\n%%EOF\n"
POINTER = (
    b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
)


def zipped() -> bytes:
    out = io.BytesIO()
    zipfile.ZipFile(out, "w").close()
    return out.getvalue()


CONTENTS: dict[str, tuple[str, bytes]] = {
    "empty": ("train.log", b""),
    "blank lines": ("train.log", b"\n\n  \n\t\n"),
    "one letter": ("train.log", b"x"),
    "zeros": ("train.log", bytes(100_000)),
    "every byte": ("train.bin", bytes(range(256)) * 400),
    "PNG": ("curve.png", PNG + bytes(range(256)) * 20),
    "PNG called a log": ("train.log", PNG + bytes(range(256)) * 20),
    "ELF": ("python3", ELF),
    "PDF": ("paper.pdf", PDF),
    "zip of nothing": ("logs.zip", zipped()),
    "gzip": ("train.log.gz", b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\x03\x00\x00\x00\x00\x00\x00\x00\x00\x00"),
    "LFS pointer": ("events.out.tfevents.1700000000.host.1.0", POINTER),
    "LFS pointer to a table": ("run.parquet", POINTER),
    "event file of 0 bytes": ("events.out.tfevents.1700000000.host.1.0", b""),
    "event file of half a header": ("events.out.tfevents.1700000000.host.1.0", b"\x18\x00\x00\x00"),
    "W&B file of 0 bytes": ("run-abc.wandb", b""),
    "W&B header alone": ("run-abc.wandb", b":W&B\xe1\xbe\x00"),
    "table cut off": ("run.parquet", b"PAR1" + bytes(50)),
    "table of 0 bytes": ("run.parquet", b""),
    "JSON cut off": ("trainer_state.json", b'{"log_history": [{"loss": '),
    "JSON of nothing": ("trainer_state.json", b"{}"),
    "JSON list": ("metrics.json", b"[1, 2, 3]"),
    "JSON, deeply nested": ("metrics.json", b"[" * 100_000),
    "CSV header alone": ("metrics.csv", b"step,loss,lr\n"),
    "prose": ("notes.txt", b"We trained for three days and it went well.\nThen it did not.\n" * 20),
    "UTF-16 prose": ("notes.txt", "Nothing to see here.\r\n".encode("utf-16") * 50),
    "source code": ("train.py", b"import torch\n\nfor step in range(100):\n    loss = step * 0.5\n"),
}


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def called(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            cli.main(words)
        said = capsys.readouterr()
        assert "Traceback" not in said.out + said.err
        return int(end.value.code or 0), said.out, said.err

    return called


def refused(path: Path, code: int, out: str, err: str) -> None:
    """One clear sentence on standard error, which names the path; nothing judged."""
    assert (code, out) == (3, ""), err
    assert err.startswith("diagnose: ") and err.endswith(("\n",)) and err.count("\n") == 1, err
    assert path.name in err, err
    assert err.rstrip()[-1] in ".!?", err
    for word in ("Error:", "Errno", "object", "NoneType", "bug in diagnose"):
        assert word not in err, err


@pytest.mark.parametrize("what", CONTENTS)
def test_a_file_that_is_no_log_is_one_sentence(what: str, run: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    name, content = CONTENTS[what]
    path = tmp_path / name
    path.write_bytes(content)
    refused(path, *run(str(path)))


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("empty", "an empty file. Tried: TensorBoard"),
        ("zeros", "not a log in a known format. Tried: TensorBoard"),
        ("LFS pointer", "a Git LFS pointer: the log itself was not fetched. Fetch it with `git lfs pull`."),
        ("gzip", "a file compressed with gzip. Unpack it"),
        ("PNG called a log", "a PNG image, not a log."),
        ("ELF", "a program, not a log."),
        ("table of 0 bytes", "not a readable Parquet file (Parquet file size is 0 bytes)."),
        ("event file of 0 bytes", "Read as tensorboard. Holds no event."),
        ("W&B file of 0 bytes", "Read as wandb. The file has 0 bytes, less than a header"),
        ("JSON cut off", "Read as hf-trainer. Not whole JSON"),
    ],
)
def test_the_sentence_says_what_it_is_and_what_was_tried(
    what: str, words: str, run: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    name, content = CONTENTS[what]
    (tmp_path / name).write_bytes(content)
    assert words in run(str(tmp_path / name))[2]


@pytest.mark.parametrize("what", CONTENTS)
def test_the_rest_of_a_folder_is_judged(what: str, run: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    name, content = CONTENTS[what]
    for place in ("good", "bad"):
        (tmp_path / place).mkdir()
    (tmp_path / "good" / "metrics.jsonl").write_text(HEALTHY)
    (tmp_path / "bad" / name).write_bytes(content)
    code, out, err = run("scan", str(tmp_path))
    assert "good" in out
    assert code in (0, 3), err  # what no reader claims is no run of this folder; what one claims and can't read is told
    assert code == 0 or name in err or "bad" in err


def unreadable(path: Path) -> None:
    path.write_text(HEALTHY)
    path.chmod(0)


def dangling(path: Path) -> None:
    path.symlink_to(path.parent / "gone")


def looped(path: Path) -> None:
    path.symlink_to(path)


def pipe(path: Path) -> None:
    os.mkfifo(path)


def folder_of_itself(path: Path) -> None:
    path.mkdir()
    (path / "again").symlink_to(path)


def deep(path: Path) -> None:
    path.mkdir()
    here = path
    for _ in range(150):
        here /= "d"
        here.mkdir()


def huge_folder(path: Path) -> None:
    path.mkdir()
    for i in range(3000):
        (path / f"{i}.png").write_bytes(PNG)


def directory_called_a_log(path: Path) -> None:
    (path / "events.out.tfevents.1.h").mkdir(parents=True)


ODD = (dangling, looped, pipe, folder_of_itself, deep, huge_folder, directory_called_a_log)


@pytest.mark.parametrize("make", [*ODD, unreadable], ids=lambda f: f.__name__)
def test_a_path_that_can_not_be_read_is_one_sentence(
    make: Callable[[Path], None], run: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    path = tmp_path / "train.jsonl"
    make(path)
    if make is unreadable and os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
    start = time.monotonic()
    refused(path, *run(str(path)))
    assert time.monotonic() - start < 10


@pytest.mark.parametrize("make", ODD, ids=lambda f: f.__name__)
def test_beside_an_odd_path_the_rest_is_judged(
    make: Callable[[Path], None], run: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    (tmp_path / "good").mkdir()
    (tmp_path / "good" / "metrics.jsonl").write_text(HEALTHY)
    make(tmp_path / "odd.jsonl")
    code, out, err = run("scan", str(tmp_path))
    assert "good" in out
    assert code in (0, 3), err


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "locked"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text(HEALTHY)
    folder.chmod(0)
    yield folder
    folder.chmod(stat.S_IRWXU)


def test_a_folder_that_may_not_be_listed_is_one_sentence(locked: Path, run: Callable[..., tuple[int, str, str]]) -> None:
    if os.access(locked, os.R_OK):
        pytest.skip("this user may read everything")
    refused(locked, *run(str(locked)))


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("train.log", b"step 5 loss 2.0 " * 2_000_000),
        ("train.log", b"loss: " + b"9" * 20_000_000),
        ("train.jsonl", b'{"step": 1, "loss": "' + b"a" * 20_000_000 + b'"}'),
        ("metrics.csv", b"step,loss\n1," + b"," * 20_000_000),
        ("train.log", b"[" * 20_000_000),
    ],
    ids=["words", "digits", "JSON", "CSV", "brackets"],
)
def test_a_huge_line_takes_neither_minutes_nor_the_rest(
    name: str, line: bytes, run: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(line)
    start = time.monotonic()
    code, _, err = run(str(path))
    assert code in (0, 3), err
    assert time.monotonic() - start < 20


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig"])
def test_a_log_in_another_encoding_is_read(encoding: str, run: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    content = HEALTHY.encode(encoding)
    path.write_bytes(("\ufeff".encode(encoding) if encoding[-2:] in ("le", "be") else b"") + content)
    code, out, err = run(str(path))
    assert code == 0, err
    assert "400 points" in out


def test_files_that_may_not_even_be_asked_for_cost_only_themselves(
    run: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that may be listed but not entered: each file in it raises PermissionError, also when this user may do everything."""
    for place in ("good", "closed"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "metrics.jsonl").write_text(HEALTHY)
    real = os.stat

    def stat_of(path: object, *more: object, **named: object) -> object:
        if "closed/" in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *more, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "stat", stat_of)
    code, out, err = run("scan", str(tmp_path))
    assert "good" in out, err
    assert code == 0


HOSTILE = (
    b"1" + b"0" * 400,
    b"-1" + b"0" * 400,
    b"1e999",
    b"NaN",
    b"null",
    b"true",
    b'"x"',
    b"[1]",
    b"[[], {}]",
    b"{}",
    b'{"a": 1, "b": 2}',
    b"-1",
    b"0",
    b"1e-320",
)


@pytest.mark.parametrize("value", HOSTILE, ids=lambda v: v.decode()[:8])
def test_a_configuration_with_any_values_breaks_no_rule(value: bytes, run: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(HEALTHY)
    config = b"""{"gradient_clipping": V, "train_batch_size": V, "train_micro_batch_size_per_gpu": V, "gradient_accumulation_steps": V,
        "fp16": {"enabled": V, "loss_scale": V, "initial_scale_power": V, "loss_scale_window": V, "min_loss_scale": V},
        "optimizer": {"type": V, "params": {"lr": V, "betas": V, "eps": V, "weight_decay": V}},
        "scheduler": {"type": V, "params": {"warmup_num_steps": V, "total_num_steps": V, "warmup_max_lr": V}}}"""
    (tmp_path / "ds_config.json").write_bytes(config.replace(b"V", value))
    for format in ("text", "json", "markdown"):
        code, _, err = run(str(tmp_path), "-f", format)
        assert code == 0, err


@pytest.mark.parametrize("values", [(1e308, -1e308), (1e308, 1.7e308), (5e-324, 1e308), (0.0, 5e-324), (-1e308, -1.7e308)], ids=str)
def test_a_log_of_the_largest_and_smallest_floats_is_judged_without_a_warning(
    values: tuple[float, float], run: Callable[..., tuple[int, str, str]], tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    names = ("loss", "eval_loss", "grad_norm", "learning_rate", "loss_scale", "step_time", "samples_per_sec", "noise_scale", "accuracy")
    lines = []
    for i in range(400):
        cells = ", ".join(f'"{name}": {values[(i + k) % 2]!r}' for k, name in enumerate(names))
        lines.append(f'{{"step": {i}, {cells}}}\n')
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    for format in ("text", "json", "markdown"):
        code, _, err = run(str(tmp_path), "-f", format)
        assert (code, err) == (0, "")
    assert [f"{w.filename}:{w.lineno}: {w.message}" for w in recwarn if "numpy" in str(w.filename) or "diagnose" in str(w.filename)] == []
