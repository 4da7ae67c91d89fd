"""Configuration files: dotted names with their lines, and files that are something else."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose.model import Setting
from diagnose.readers.config_files import READER

DATA = Path(__file__).parent.parent / "data" / "deepspeed"


def settings_of(path: Path) -> dict[str, Setting]:
    return {s.name: s for s in READER.read([path]).settings}


def write(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("path", sorted(DATA.rglob("ds_config.json")), ids=lambda p: p.parent.name)
def test_a_deepspeed_config_gives_dotted_names_and_lines(path: Path) -> None:
    assert READER.claims(path) and READER.companion
    found = settings_of(path)
    assert found["scheduler.params.warmup_max_lr"].value == 0.01
    rows = path.read_text().splitlines()
    for setting in found.values():
        line = int(setting.where.split(":")[1])
        assert f'"{setting.name.rsplit(".", 1)[-1]}"' in rows[line - 1]


def test_any_json_with_deepspeed_keys_is_ours(tmp_path: Path) -> None:
    assert READER.claims(write(tmp_path, "zero3.json", '{"zero_optimization": {"stage": 3}, "train_batch_size": "auto"}'))
    assert not READER.claims(write(tmp_path, "other.json", '{"train_batch_size": 8}'))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("trainer_state.json", '{"log_history": [], "train_batch_size": 8, "steps_per_print": 1}'),
        ("config.json", '{"log_history": []}'),
        ("config.json", "[1, 2]"),
        ("config.json", "{"),
        ("config.json", ""),
        ("args.json", "[" * 50_000),
        ("config.json", '{"a": 1}\n{"a": 2}'),
        ("config.json", "{" + " " * (2 << 20) + "}"),
        ("config.yaml", "- a\n- b\n"),
        ("config.yaml", ""),
        ("events.yaml", "a: 1"),
        ("x.txt", '{"zero_optimization": {}}'),
    ],
    ids=range(12),
)
def test_what_is_no_configuration_is_not_claimed(tmp_path: Path, name: str, text: str) -> None:
    assert not READER.claims(write(tmp_path, name, text))


def test_yaml_keeps_unknown_tags_as_text_and_runs_nothing(tmp_path: Path) -> None:
    text = (
        "lr: 1e-3\noptim:\n  name: adamw\n  betas: [0.9, 0.95]\n  eps: 1e-08\n"
        "model: !!python/object/apply:os.system ['false']\npath: !!python/name:os.getcwd\nmy: !thing {a: 1}\nnone: null\n"
    )
    path = write(tmp_path, "hparams.yaml", text)
    assert READER.claims(path)
    found = settings_of(path)
    assert found["lr"].value == 0.001 and found["optim.eps"].value == 1e-8 and found["optim.betas"].value == [0.9, 0.95]
    assert found["model"].value == ["false"] and isinstance(found["path"].value, str) and found["my.a"].value == 1
    assert found["optim.name"].where == "hparams.yaml:3" and found["none"].value is None


def test_wandb_values_are_unboxed(tmp_path: Path) -> None:
    found = settings_of(write(tmp_path, "config.yaml", "lr:\n  desc: null\n  value: 0.1\nopt:\n  value:\n    name: sgd\n"))
    assert found["lr"].value == 0.1 and found["opt.name"].value == "sgd"


def test_aliases_of_aliases_end(tmp_path: Path) -> None:
    rows = ["a0: &a0 {x: 1, y: 2}"] + [f"a{i}: &a{i} {{x: *a{i - 1}, y: *a{i - 1}, z: *a{i - 1}}}" for i in range(1, 30)]
    start = time.perf_counter()
    found = READER.read([write(tmp_path, "config.yaml", "\n".join(rows))])
    assert time.perf_counter() - start < 5.0 and 0 < len(found.settings) <= 5000 and found.problems


@pytest.mark.parametrize(
    ("name", "text"), [("config.json", "[" * 100_000), ("config.yaml", "[" * 100_000), ("config.yaml", "a: [\x00"), ("config.json", "3")]
)
def test_a_file_that_is_none_is_a_problem(tmp_path: Path, name: str, text: str) -> None:
    found = READER.read([write(tmp_path, name, text)])
    assert not found.settings and len(found.problems) == 1


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda x: st.lists(x) | st.dictionaries(st.text(max_size=5), x),
    )
)
def test_any_json_is_survived(tmp_path_factory: pytest.TempPathFactory, value: object) -> None:
    path = tmp_path_factory.mktemp("t") / "config.json"
    path.write_text(json.dumps(value))
    READER.claims(path)
    for setting in READER.read([path]).settings:
        kinds = (str, int, float, bool, type(None))
        assert isinstance(setting.value, kinds) or all(isinstance(v, kinds) for v in setting.value)
