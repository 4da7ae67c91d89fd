"""Runs logged with TensorBoard and W&B."""

from __future__ import annotations

import math

import torch
from torch import nn

from trainings.models import GPT, Bert, Recurrent, corpus, cross_entropy, windows
from trainings.writers import bench, board, cosine, norm_of, stepper


def healthy_gpt() -> None:
    """Warm-up, cosine decay, clipping, a falling evaluation loss: nothing is wrong."""
    torch.manual_seed(1)
    rng, steps, lr, warmup = torch.Generator().manual_seed(1), 900, 2e-3, 100
    text = corpus("argparse", "typing", "inspect", "pydoc", "tarfile", "subprocess")
    pieces = text[: len(text) // 80 * 80].view(80, -1)
    train, held = pieces[torch.arange(80) % 8 != 0].flatten(), pieces[::8].flatten()
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.1)
    step = stepper(model, optimizer, lambda _: windows(train, 16, 48, rng), lambda i: cosine(i, lr, warmup, steps, lr / 4), 3.0)
    hparams = {
        "optimizer": "AdamW",
        "lr": lr,
        "beta1": 0.9,
        "beta2": 0.95,
        "weight_decay": 0.1,
        "warmup_steps": warmup,
        "max_steps": steps,
        "lr_scheduler_type": "cosine",
        "max_grad_norm": 3.0,
        "batch_size": 16,
        "n_layer": 2,
        "n_embd": 48,
        "norm_position": "pre",
        "precision": "fp32",
    }
    check = windows(held, 64, 48, torch.Generator().manual_seed(2))
    with board("healthy-gpt", hparams) as log:
        for i in range(steps):
            log(i, {f"train/{k}": v for k, v in step(i).items()})
            if i % 50 == 49:
                with torch.no_grad():
                    log(i, {"eval/loss": cross_entropy(model(check[0]), check[1]).item()})


def healthy_wandb() -> None:
    """An LSTM with linear decay: nothing is wrong."""
    torch.manual_seed(2)
    rng, steps, lr, warmup = torch.Generator().manual_seed(2), 520, 4e-3, 40
    text = corpus("turtle", "tarfile", "ast", "difflib")
    model = Recurrent("lstm", 64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0.01)
    step = stepper(model, optimizer, lambda _: windows(text, 24, 40, rng), lambda i: lr * min((i + 1) / warmup, 1.02 - i / steps), 1.0)
    config = {
        "optimizer": {"name": "adamw", "lr": lr, "betas": [0.9, 0.98], "weight_decay": 0.01},
        "warmup_steps": warmup,
        "max_steps": steps,
        "lr_scheduler_type": "linear",
        "max_grad_norm": 1.0,
        "batch_size": 24,
        "model": {"type": "lstm", "hidden_size": 64},
    }
    with bench("healthy-wandb", config) as log:
        for i in range(steps):
            log(i, {f"train/{k}": v for k, v in step(i).items()})


def lr_too_high_divergence() -> None:
    """A Post-LN model warms up towards a learning rate that it can't bear, without clipping."""
    torch.manual_seed(3)
    rng, steps, lr, warmup, planned = torch.Generator().manual_seed(3), 600, 0.1, 700, 4000
    text = corpus("argparse", "typing", "inspect", "pydoc", "tarfile", "subprocess")
    model = GPT(layers=4, post=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0.0)
    step = stepper(model, optimizer, lambda _: windows(text, 16, 48, rng), lambda i: cosine(i, lr, warmup, planned, lr / 10), 0.0)
    config = {
        "optimizer": "adamw",
        "learning_rate": lr,
        "adam_beta1": 0.9,
        "adam_beta2": 0.98,
        "weight_decay": 0.0,
        "warmup_steps": warmup,
        "max_steps": planned,
        "lr_scheduler_type": "cosine",
        "max_grad_norm": 0.0,
        "batch_size": 16,
        "n_layer": 4,
        "n_embd": 48,
        "norm_position": "post",
    }
    with bench("lr-too-high-divergence", config) as log:
        for i in range(steps):
            values = step(i)
            log(i, {"train/loss": values["loss"], "train/grad_norm": values["grad_norm"], "train/learning_rate": values["lr"]})


def rnn_explosion() -> None:
    """A plain recurrent network without clipping, on the way up to a learning rate that it can bear with clipping only."""
    torch.manual_seed(4)
    rng, steps, lr = torch.Generator().manual_seed(4), 400, 1.5
    text = corpus("argparse", "typing", "inspect")
    model = Recurrent("relu", 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    step = stepper(model, optimizer, lambda _: windows(text, 16, 64, rng), lambda i: lr * min(1, (i + 1) / 300), 0.0)
    hparams = {
        "optimizer": "SGD",
        "lr": lr,
        "momentum": 0.9,
        "warmup_steps": 300,
        "max_steps": steps,
        "max_grad_norm": 0.0,
        "batch_size": 16,
        "rnn_cell": "RNN",
        "activation": "relu",
        "hidden_size": 64,
        "sequence_length": 64,
    }
    with board("rnn-explosion", hparams) as log:
        broken = 0
        for i in range(steps):
            values = step(i)
            log(i, {"loss": values["loss"], "grad_norm": values["grad_norm"], "lr": values["lr"]})
            broken += not math.isfinite(values["loss"])
            if broken > 40:
                break


def bert_vanishing() -> None:
    """Twelve Post-LN layers with saturating pieces: the gradient is gone eight layers from the output."""
    torch.manual_seed(5)
    rng, steps, lr, warmup, classes = torch.Generator().manual_seed(5), 500, 5e-5, 50, 4
    texts = [corpus(m) for m in ("turtle", "argparse", "typing", "tarfile")]
    model = Bert(48, 12, classes, 32, 0.04)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)

    def batch(_: int) -> tuple[torch.Tensor, torch.Tensor]:
        labels = torch.randint(classes, (16,), generator=rng)
        return torch.cat([windows(texts[k], 1, 32, rng)[0] for k in labels]), labels

    step = stepper(model, optimizer, batch, lambda i: cosine(i, lr, warmup, steps, 0.0), 1.0)
    hparams = {
        "optimizer": "AdamW",
        "lr": lr,
        "beta2": 0.999,
        "weight_decay": 0.01,
        "warmup_steps": warmup,
        "max_steps": steps,
        "max_grad_norm": 1.0,
        "batch_size": 16,
        "num_layers": 12,
        "hidden_size": 48,
        "norm_position": "post",
        "activation": "sigmoid",
        "num_labels": classes,
    }
    with board("bert-vanishing", hparams) as log:
        for i in range(steps):
            values = step(i)
            log(i, {"train/loss": values["loss"], "train/grad_norm": values["grad_norm"], "train/lr": values["lr"]})
            if i % 5 == 0:
                log(i, {f"grad_norm/layer_{k:02d}": norm_of(layer.parameters()) for k, layer in enumerate(model.layers)})


def oscillation_period() -> None:
    """The same 64 batches in the same order, epoch after epoch: tables first, then prose."""
    torch.manual_seed(6)
    steps, lr, warmup, period, size, length = 960, 1e-3, 40, 64, 8, 48
    half = period * size * length // 2
    text = torch.cat([corpus("html/entities")[4000 : 4000 + half], corpus("typing")[:half]])
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.1)

    def batch(index: int) -> tuple[torch.Tensor, torch.Tensor]:
        first = (index % period) * size * length
        piece = text[first : first + size * length + 1]
        return piece[:-1].view(size, length), piece[1:].view(size, length)

    text = torch.cat([text, text[: size * length + 1]])
    step = stepper(model, optimizer, batch, lambda i: lr * min(1, (i + 1) / warmup), 1.0)
    hparams = {
        "optimizer": "AdamW",
        "lr": lr,
        "beta2": 0.95,
        "warmup_steps": warmup,
        "max_steps": steps,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 1.0,
        "batch_size": size,
        "data.shuffle": False,
        "data.size": period * size,
        "n_layer": 2,
        "n_embd": 48,
    }
    with board("oscillation-period", hparams) as log:
        for i in range(steps):
            values = step(i)
            log(i, {"train/loss": values["loss"], "train/grad_norm": values["grad_norm"], "train/lr": values["lr"], "epoch": i / period})


def gns_drift() -> None:
    """From the middle on a growing share of labels is random: gradients get noisier while the rate stays the same."""
    torch.manual_seed(7)
    rng, steps, lr, micro, parts = torch.Generator().manual_seed(7), 900, 1.5e-4, 32, 8
    teacher = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 8))
    model = nn.Sequential(nn.Linear(16, 96), nn.GELU(), nn.Linear(96, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.0)
    hparams = {
        "optimizer": "AdamW",
        "lr": lr,
        "beta2": 0.95,
        "warmup_steps": 20,
        "max_steps": steps,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 1.0,
        "batch_size": micro * parts,
        "gns.batch_size_small": micro,
        "gns.batch_size_big": micro * parts,
    }
    with board("gns-drift", hparams) as log:
        for i in range(steps):
            rate, garbage = lr * min(1, (i + 1) / 20), 0.6 * max(0.0, (i - 450) / 450)
            x = torch.randn(micro * parts, 16, generator=rng)
            with torch.no_grad():
                y = (teacher(x) * 4).argmax(-1)
            y = torch.where(torch.rand(len(y), generator=rng) < garbage, torch.randint(8, (len(y),), generator=rng), y)
            small, total = 0.0, 0.0
            optimizer.zero_grad()
            mean = [torch.zeros_like(p) for p in model.parameters()]
            for k in range(parts):
                loss = cross_entropy(model(x[k * micro : (k + 1) * micro]), y[k * micro : (k + 1) * micro])
                grads = torch.autograd.grad(loss, list(model.parameters()))
                small += sum(float(g.pow(2).sum()) for g in grads) / parts
                total += loss.item() / parts
                mean = [m + g / parts for m, g in zip(mean, grads, strict=True)]
            big = sum(float(m.pow(2).sum()) for m in mean)
            for p, m in zip(model.parameters(), mean, strict=True):
                p.grad = m
            norm = float(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
            optimizer.param_groups[0]["lr"] = rate
            optimizer.step()
            log(i, {"loss": total, "grad_norm": norm, "lr": rate, "g_small_sq": small, "g_big_sq": big})
