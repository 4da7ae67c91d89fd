"""Runs of DeepSpeed on the CPU, each in a process of its own, whose console is kept."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from trainings.models import GPT, corpus, cross_entropy, windows
from trainings.writers import HERE, WORK, cosine, fresh

ENGINE = {
    "train_micro_batch_size_per_gpu": 16,
    "gradient_accumulation_steps": 1,
    "steps_per_print": 10,
    "log_level": "info",
    "zero_allow_untested_optimizer": True,
    "zero_force_ds_cpu_optimizer": False,
    "zero_optimization": {"stage": 1},
    "csv_monitor": {"enabled": True, "output_path": "csv", "job_name": "run"},
    "tensorboard": {"enabled": True, "output_path": "tensorboard", "job_name": "run"},
}


def engine_run(name: str) -> None:
    """Runs `trained(name)` in a neutral directory and keeps its console, monitor files and configuration."""
    place = WORK / name
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    code = f"import sys; sys.path.insert(0, {str(HERE)!r}); import make; make.engine.trained({name!r})"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=place,
        env={**os.environ, **alone},
        text=True,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    console = re.sub(r'/[^\s"\']*/site-packages/', "site-packages/", done.stdout).replace(f"{HERE}/trainings/engine.py", "train.py")
    target = fresh(name)
    (target / "console.log").write_text(re.sub(r"(object|function \S+) at 0x[0-9a-f]+", r"\1 at 0x0", console))
    for kept in ("csv", "tensorboard", "ds_config.json"):
        if (place / kept).exists():
            (shutil.copytree if (place / kept).is_dir() else shutil.copy)(place / kept, target / kept)


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def trained(name: str) -> None:
    """One DeepSpeed training in this process."""
    import deepspeed

    more, steps, rate, slower = {"fp16-overflow-collapse": overflowing, "healthy-deepspeed": healthy, "throughput-regression": slowing}[
        name
    ]()
    config = {**ENGINE, **more}
    Path("ds_config.json").write_text(json.dumps(config, indent=2) + "\n")
    torch.manual_seed(11)
    rng, text, model = torch.Generator().manual_seed(11), corpus("argparse", "typing", "inspect", "pydoc"), GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0, betas=(0.9, 0.95))
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=optimizer, config=config, lr_scheduler=lambda o: torch.optim.lr_scheduler.LambdaLR(o, rate)
    )
    took: list[float] = []
    for i in range(1, steps + 1):
        start = time.perf_counter()
        x, y = windows(text, 16, 48, rng)
        model.tail = slower(took)
        loss = cross_entropy(engine(x), y)
        engine.backward(loss)
        engine.step()
        took.append(time.perf_counter() - start)
        norm = engine.get_global_grad_norm()
        said = f"step {i} loss {loss.item():.5f} lr {engine.get_lr()[0]:.6g} grad_norm {float(norm):.5f}"
        print(said + (f" step_time {took[-1]:.4f}" if name.startswith("throughput") else ""), flush=True)


Setup = tuple[dict[str, Any], int, Callable[[int], float], Callable[[list[float]], float]]


def fp16(power: int, window: int) -> dict[str, Any]:
    """Dynamic loss scaling from this power of two on."""
    return {
        "enabled": True,
        "loss_scale": 0,
        "initial_scale_power": power,
        "loss_scale_window": window,
        "hysteresis": 2,
        "min_loss_scale": 1,
    }


def overflowing() -> Setup:
    """The rate climbs exponentially, without clipping, until activations leave fp16's range."""
    return {"gradient_clipping": 0.0, "fp16": fp16(16, 100)}, 900, lambda i: min(1e-3 * math.exp(i / 70), 4.0), lambda took: 0.0


def healthy() -> Setup:
    """Nothing wrong; each step waits 60 ms for its input, so that other work on the machine matters little."""
    return {"gradient_clipping": 3.0, "bf16": {"enabled": True}}, 600, lambda i: cosine(i, 2e-3, 60, 600, 5e-4), lambda took: 0.06


def slowing() -> Setup:
    """Each step waits 60 ms for its input, so that other work on the machine matters little; from step 251 on 35 % longer in all."""

    def slower(took: list[float]) -> float:
        return 0.06 if len(took) < 250 else 0.06 + 0.35 * statistics.median(took[100:250])

    more = {"gradient_clipping": 3.0, "bf16": {"enabled": True}, "wall_clock_breakdown": True, "tensorboard": {"enabled": False}}
    return more, 500, lambda i: cosine(i, 2e-3, 50, 500, 5e-4), slower
