"""The run table -> signals: attempts stitched, gates passed, derived signals made, known events marked.

Gates (knowledge 0.2): H1 order, H2 quantisation, H3 stale repeats, H4 loss-scaled norms, H5 always zero, H6 the NaN filter,
H7 the missing loss field. Masks (knowledge 0.3): X1 learning rate, X2 cyclic rate, X3 batch size, X4 sequence length,
X5 resume, X10 first steps, X12 skipped steps. What a gate changed is said in the facts, never silently.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from diagnose import settings as catalogue
from diagnose.model import Event, Frozen, Mask, Setting, Signal
from diagnose.signals.derived import derive
from diagnose.signals.gates import pass_gates
from diagnose.signals.masks import extent, masks_of, schedule_facts, settled_from
from diagnose.signals.stitching import resolution, stitch, stitched
from diagnose.table import Run


@dataclass(frozen=True, slots=True, eq=False)
class Signals:
    """What detectors and rules look at: signals by canonical name, masks, settings by canonical name, facts."""

    by_name: Mapping[str, Signal]
    masks: tuple[Mask, ...] = ()
    settings: Mapping[str, Setting] = field(default_factory=Frozen)
    events: tuple[Event, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=Frozen)


def build(run: Run) -> Signals:
    """All of the above from one run table."""
    found = catalogue.canonical(run.settings)
    facts: dict[str, Any] = dict(run.facts)
    named = stitched(run, facts)
    pass_gates(named, facts)
    derive(named, found, run.events, facts)
    extent(named, facts)
    schedule_facts(named, found, facts)
    masks = masks_of(named, found, run.events, facts)
    settled = settled_from(named, facts)
    ready = {name: replace(s, settled_from=settled) for name, s in sorted(named.items())}
    return Signals(Frozen(ready), tuple(masks), Frozen(found), run.events, Frozen(facts))


__all__ = ["Signals", "build", "resolution", "stitch"]
