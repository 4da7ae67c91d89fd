from __future__ import annotations

import json
import math
from dataclasses import fields, is_dataclass
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnose import model
from diagnose.errors import NothingReadable
from diagnose.model import Curve, Frozen, Report, Setting
from diagnose.reports import json_v1

SCHEMA = json.loads((Path(json_v1.__file__).parent / "report_v1.schema.json").read_text(encoding="utf-8"))


def same(one: object, other: object) -> bool:
    """Equal in every field, NaN equal to NaN, and of the same types where that can be seen in JSON."""
    if is_dataclass(one) and is_dataclass(other):
        return type(one) is type(other) and all(same(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(same(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    return type(one) is type(other) and one == other


def strictly(text: str) -> object:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not strict JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize("which", ["exploded", "healthy", "dead"])
def test_a_report_comes_back_equal_in_every_field(which: str, request: pytest.FixtureRequest) -> None:
    report = request.getfixturevalue(which)
    assert same(json_v1.load(json_v1.render(report)), report)


def test_nasty_text_comes_back_exactly(hostile: Report) -> None:
    back = json_v1.load(json_v1.render(hostile))
    again = json_v1.render(back)
    assert again == json_v1.render(hostile)
    assert json_v1.render(hostile).isprintable() or "\x1b" not in json_v1.render(hostile)


@pytest.mark.parametrize("which", ["exploded", "healthy", "dead", "hostile"])
def test_output_is_strict_and_fits_the_published_schema(which: str, request: pytest.FixtureRequest) -> None:
    jsonschema.validate(strictly(json_v1.render(request.getfixturevalue(which))), SCHEMA)


def test_many_reports_fit_the_published_schema_and_come_worst_first(several: list[Report]) -> None:
    found = strictly(json_v1.render_many(several))
    jsonschema.validate(found, SCHEMA)
    assert found["schema"] == "diagnose.reports/1"  # type: ignore[index]
    assert [r["worst"] for r in found["runs"]] == ["critical", "major", None, None]  # type: ignore[index]
    assert [r.verdict for r in json_v1.load_many(json.dumps(found))] == [r["verdict"] for r in found["runs"]]  # type: ignore[index]


def test_the_schema_itself_is_valid_and_refuses_what_is_no_report() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"schema": "diagnose.report/1"}, SCHEMA)


def test_every_field_of_every_dataclass_is_described() -> None:
    reported = [k for k in vars(model).values() if is_dataclass(k) and k.__name__ != "Signal"]
    assert len(reported) == 15
    for kind in reported:
        described = SCHEMA["$defs"][kind.__name__]["properties"]
        derived = {"worst", "readable"} if kind is Report else set()
        assert set(described) - derived == {f.name for f in fields(kind)}, kind
        assert all(p.get("description") for p in described.values()), kind


def test_a_string_that_says_nan_stays_a_string_and_a_float_stays_a_float() -> None:
    values = ["NaN", math.nan, [math.inf, "-Infinity"], 1, 1.0, True, None]
    report = Report(Frozen(points=1), "", settings=tuple(Setting("s", v) for v in values))
    back = [s.value for s in json_v1.load(json_v1.render(report)).settings]
    assert all(same(a, b) for a, b in zip(values, back, strict=True))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(width=64), max_size=20),
    st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=6),
)
def test_any_floats_and_any_settings_round_trip(values: list[float], value: object) -> None:
    curve = Curve("a", "a", "", np.arange(len(values), dtype=np.int64), np.array(values, dtype=np.float64), points=len(values))
    report = Report(Frozen(points=1), "v", curves=(curve,), settings=(Setting("s", value),))
    assert same(json_v1.load(json_v1.render(report)), report)


def test_numpy_scalars_become_plain_numbers() -> None:
    report = Report(Frozen(points=np.int64(3), last_step=np.float32(2.0)), "v")
    assert json.loads(json_v1.render(report))["run"] == {"points": 3, "last_step": 2.0}


def test_properties_of_a_later_version_are_ignored(healthy: Report) -> None:
    plain = json_v1.to_plain(healthy)
    plain["news"] = {"a": 1}
    plain["outcomes"][0]["more"] = []
    assert same(json_v1.load(json.dumps(plain)), healthy)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "nonsense",
        '{"schema": "other/1"}',
        '{"schema": "diagnose.report/1"}',
        '{"schema": "diagnose.report/1", "run": 5, "verdict": "x"}',
        '{"schema": "diagnose.report/1", "run": {}, "verdict": "x", "curves": [{"name": 1}]}',
        '{"a": NaN}',
        "[" * 100_000,
    ],
)
def test_what_is_no_report_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(NothingReadable) as error:
        json_v1.load(text, where="some.json")
    assert str(error.value).startswith("some.json: ")
    assert "\n" not in str(error.value)


def test_loaded_arrays_are_read_only(exploded: Report) -> None:
    values = json_v1.load(json_v1.render(exploded)).curves[0].values
    with pytest.raises(ValueError, match="read-only"):
        values[0] = 1.0
