"""Where a run is written to, and one optimiser step with its norm."""

from __future__ import annotations

import contextlib
import math
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trainings.models import cross_entropy

HERE = Path(__file__).resolve().parent.parent
WORK = Path("/tmp/run")  # a neutral place: DeepSpeed and W&B write the paths they run in


def norm_of(parameters: Any) -> float:
    """The 2-norm of all gradients together."""
    return math.sqrt(sum(float(p.grad.float().pow(2).sum()) for p in parameters if p.grad is not None))


@contextlib.contextmanager
def board(name: str, hparams: dict[str, Any]) -> Iterator[Callable[[int, dict[str, float]], None]]:
    """A TensorBoard run with its hyper-parameters in the same event file; gives `log(step, values)`."""
    from torch.utils.tensorboard import SummaryWriter
    from torch.utils.tensorboard.summary import hparams as summary

    writer = SummaryWriter(str(fresh(name)))
    for part in summary(hparams, {}):
        writer.file_writer.add_summary(part)

    def log(step: int, values: dict[str, float]) -> None:
        for tag, value in values.items():
            writer.add_scalar(tag, value, step)

    yield log
    writer.close()


@contextlib.contextmanager
def bench(name: str, config: dict[str, Any]) -> Iterator[Callable[[int, dict[str, float]], None]]:
    """An offline W&B run without machine, code or repository facts; gives `log(step, values)`."""
    import wandb

    place = WORK / name
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    quiet = wandb.Settings(
        disable_git=True,
        disable_code=True,
        console="off",
        x_disable_stats=True,
        x_disable_meta=True,
        x_disable_machine_info=True,
        host="host",
        program="train.py",
        program_relpath="train.py",
        program_abspath="train.py",
        silent=True,
        x_save_requirements=False,
        root_dir=str(place),
    )
    run = wandb.init(project="samples", id=re.sub(r"\W", "", name)[:16], name=name, config=config, dir=str(place), settings=quiet)
    yield lambda step, values: run.log(values, step=step)
    run.finish()
    target = fresh(name)
    for file in sorted(place.rglob("run-*.wandb")):
        (target / "wandb" / file.parent.name).mkdir(parents=True)
        shutil.copy(file, target / "wandb" / file.parent.name / file.name)


def fresh(name: str) -> Path:
    """An empty directory for this run."""
    shutil.rmtree(HERE / name, ignore_errors=True)
    (HERE / name).mkdir()
    return HERE / name


def cosine(step: int, peak: float, warmup: int, total: int, floor: float) -> float:
    """Linear warm-up, then a half cosine down to `floor`."""
    if step < warmup:
        return peak * (step + 1) / warmup
    return floor + (peak - floor) * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))


Step = Callable[[int], dict[str, float]]


def stepper(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: Callable[[int], Any], rate: Callable[[int], float], clip: float
) -> Step:
    """One training step as a function: loss, gradient norm before clipping, learning rate, seconds."""

    def step(index: int) -> dict[str, float]:
        start = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = rate(index)
        x, y = batch(index)
        loss = cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        norm = float(nn.utils.clip_grad_norm_(model.parameters(), clip)) if clip else norm_of(model.parameters())
        optimizer.step()
        return {"loss": loss.item(), "grad_norm": norm, "lr": rate(index), "step_time": time.perf_counter() - start}

    return step
