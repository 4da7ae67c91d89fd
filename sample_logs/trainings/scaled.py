"""A run of our own loop in fp16, with a console in the format of Megatron-DeepSpeed."""

from __future__ import annotations

import json
import math
import time

import torch

from trainings.models import GPT, corpus, cross_entropy, windows
from trainings.writers import fresh, norm_of


def gpt175b_like() -> None:
    """fp16 from a scale of 2**32, a high rate at once, no clipping; the console prints the norm of the scaled gradient."""
    torch.manual_seed(10)
    rng, steps, lr, scale, good, window = torch.Generator().manual_seed(10), 300, 0.35, 2.0**32, 0, 1000
    text = corpus("argparse", "typing", "inspect")
    model = GPT(half=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, betas=(0.9, 0.95))
    place, lines = fresh("gpt175b-like"), []
    for i in range(1, steps + 1):
        start = time.perf_counter()
        x, y = windows(text, 16, 48, rng)
        loss = cross_entropy(model(x), y)
        optimizer.zero_grad()
        (loss * scale).backward()
        norm = norm_of(model.parameters())  # of the scaled gradient, as it stands
        skipped = not math.isfinite(norm)
        lines.append(
            f" iteration {i:8d}/{5000:8d} | consumed samples: {16 * i:12d} | consumed tokens: {16 * 48 * i:12d} |"
            f" elapsed time per iteration (ms): {1000 * (time.perf_counter() - start):.1f} | learning rate: {lr:.3E} |"
            f" global batch size: {16:5d} |"
            f" lm loss: {loss.item():.6E} | loss scale: {scale:.1f} | grad norm: {norm:.3f} |"
            f" number of skipped iterations: {skipped:3d} | number of nan iterations: {math.isnan(norm):3d} |"
        )
        if skipped:
            scale, good = max(1.0, scale / 2), 0
            continue
        for p in model.parameters():
            p.grad /= scale
        optimizer.step()
        good += 1
        if good % window == 0:
            scale *= 2
    config = {
        "train_batch_size": 16,
        "gradient_clipping": 0.0,
        "zero_optimization": {"stage": 2, "contiguous_gradients": True},
        "optimizer": {"type": "Adam", "params": {"lr": lr, "betas": [0.9, 0.95], "eps": 1e-8}},
        "steps_per_print": 1,
        "fp16": {"enabled": True, "loss_scale": 0, "initial_scale_power": 32, "loss_scale_window": window, "min_loss_scale": 1},
    }
    (place / "console.log").write_text("\n".join(lines) + "\n")
    (place / "ds_config.json").write_text(json.dumps(config, indent=2) + "\n")
