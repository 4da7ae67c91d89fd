"""Fixes as data: what to change, by how much, why it should help, and how each framework spells it.

`library` says what to do in one sentence and which canonical settings that changes; `spelling` says what a setting means
and how it is written in each framework; `snippets` says how to log what was not logged. A fix's snippets are always made
from the changes that stand beside them, so the two can't disagree.

Values are starting points from the literature and from engineering logs, not promises; where the evidence is mixed the
text says so. Clipping is never offered against vanishing gradients (it only shrinks gradients), and nothing here credits a
ZeRO stage or `contiguous_gradients` with stability (they lay out memory and leave every number as it is).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from diagnose.errors import BadPart
from diagnose.model import Change, Fix, Frozen
from diagnose.remedies.library import ALSO, LIBRARY, Plan, Slot
from diagnose.remedies.snippets import logging_snippet, usual
from diagnose.remedies.spelling import FRAMEWORKS, SETTINGS, documented, spell


def fix(
    id: str,
    *,
    changes: Iterable[Change] = (),
    because: str = "",
    expect: str = "",
    caution: str = "",
    values: Mapping[str, Any] = Frozen(),
) -> Fix:
    """One fix from the library, with the rule's values and reasons where it has better ones.

    Values that are None or missing leave the sentence general. `changes` replace planned ones of the same setting.
    `values["now"]` may hold the present values, by canonical setting.
    """
    known = ALSO.get(id, id)
    entry = LIBRARY.get(known)
    if entry is None:
        near = difflib.get_close_matches(id, [*LIBRARY, *ALSO], 1)
        raise BadPart(
            f"There is no fix '{id}'.", hint=f"Did you mean '{near[0]}'?" if near else "The ids are the keys of remedies.LIBRARY."
        )
    given = {k: v for k, v in values.items() if v is not None}
    now = given.pop("now", {})
    full = {**entry.defaults, **given}
    named = all(slot in full for slot in _slots(entry.do))
    sentence = (entry.do if named or not entry.bare else entry.bare).format_map(full)
    made = {c.setting: c for plan in entry.changes for c in _planned(plan, full, now)}
    made.update({c.setting: c for c in changes})
    return Fix(
        known,
        f"{sentence}.",
        because=because or entry.because,
        expect=expect or entry.expect,
        caution=caution or entry.caution,
        changes=tuple(made.values()),
        spelled=Frozen(spell(made.values(), full) if known != "log-more" else usual()),
        safety="safe" if entry.safe else "needs-judgement",
    )


def _slots(sentence: str) -> list[str]:
    return re.findall(r"\{(\w+)", sentence)


def _planned(plan: Plan, values: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Change]:
    present = now.get(plan.setting)
    if not isinstance(plan.value, Slot):
        yield Change(plan.setting, "set", plan.value, now=present)
    elif plan.value.name in values:
        yield Change(plan.setting, "set", values[plan.value.name], now=present)
    elif plan.or_scale is not None:
        yield Change(plan.setting, "scale", plan.or_scale, now=present)


__all__ = ["ALSO", "FRAMEWORKS", "LIBRARY", "SETTINGS", "documented", "fix", "logging_snippet", "spell"]
