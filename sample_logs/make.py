"""Makes the sample logs: small real trainings on the CPU, logged by the real libraries (`pip install -e '.[samples]'`).

`python sample_logs/make.py [NAME ...]` makes all runs or the named ones, each in its own directory beside this file. Seeds
are fixed; the last digits depend on the machine and its libraries. Nothing is drawn by hand: every number is computed by a
training loop, faults come from settings or data (`README.md` says which), and no logged value is changed afterwards.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

for _key, _value in {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "WANDB_MODE": "offline", "WANDB_SILENT": "true"}.items():
    os.environ.setdefault(_key, _value)
socket.gethostname = lambda: "host"  # event files carry the host's name; a sample should not
warnings.filterwarnings("ignore")

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

HERE = Path(__file__).resolve().parent
WORK = Path("/tmp/run")  # a neutral place: DeepSpeed and W&B write the paths they run in
torch.set_num_threads(1)

# -- data: the text of Python's own library, byte by byte


def corpus(*modules: str) -> torch.Tensor:
    """The source of these standard modules as bytes."""
    text = b"".join((Path(os.__file__).parent / f"{m}.py").read_bytes() for m in modules)
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long()


def windows(text: torch.Tensor, count: int, length: int, rng: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """`count` random pieces of the text: inputs, and the next byte at each place."""
    at = torch.randint(len(text) - length - 1, (count,), generator=rng)
    piece = torch.stack([text[i : i + length + 1] for i in at])
    return piece[:, :-1], piece[:, 1:]


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The mean over all places, in fp32."""
    return functional.cross_entropy(logits.float().flatten(0, -2), labels.flatten())


# -- models


class Block(nn.Module):
    """A transformer block, Pre-LN or Post-LN."""

    def __init__(self, width: int, heads: int, post: bool) -> None:
        super().__init__()
        self.post = post
        self.norm1, self.norm2, self.heads = nn.LayerNorm(width), nn.LayerNorm(width), heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.post:
            x = self.norm1(x + self.attend(x))
            return self.norm2(x + self.mlp(x))
        x = x + self.attend(self.norm1(x))
        return x + self.mlp(self.norm2(x))

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        """Causal self-attention."""
        n, t, d = x.shape
        q, k, v = (z.view(n, t, self.heads, -1).transpose(1, 2) for z in self.qkv(x).chunk(3, -1))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(n, t, d))


class RoundedToHalf(torch.autograd.Function):
    """Values as fp16 holds them (above 65504: inf); the gradient passes in fp32."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.half().float()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


class GPT(nn.Module):
    """A byte-level language model; `half` rounds block outputs to fp16, `post` is Post-LN, `tail` are seconds to wait."""

    def __init__(self, width: int = 48, layers: int = 2, heads: int = 4, length: int = 48, *, half: bool = False, post: bool = False) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads, post) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)
        self.half_blocks, self.tail = half, 0.0
        for p in self.parameters():
            if p.ndim >= 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.tokens(x) + self.places(torch.arange(x.shape[1]))
        for block in self.blocks:
            h = RoundedToHalf.apply(block(h)) if self.half_blocks else block(h)
        if self.tail:
            time.sleep(self.tail)
        logits = self.head(self.norm(h))
        return RoundedToHalf.apply(logits) if self.half_blocks else logits


class Recurrent(nn.Module):
    """A byte-level language model with one recurrent layer."""

    def __init__(self, cell: str, width: int) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(256, width), nn.Linear(width, 256)
        self.cell = nn.RNN(width, width, nonlinearity="relu", batch_first=True) if cell == "relu" else nn.LSTM(width, width, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.cell(self.tokens(x))[0])


class PostBlock(nn.Module):
    """A Post-LN encoder block whose feed-forward part is a saturating sigmoid and has lost its skip path."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.Sigmoid(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm1(x + self.attention(x, x, x, need_weights=False)[0])
        return self.norm2(self.mlp(x))


class Bert(nn.Module):
    """A sentence classifier: twelve Post-LN blocks, the first place decides."""

    def __init__(self, width: int, layers: int, classes: int, length: int, std: float) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(PostBlock(width, 4) for _ in range(layers))
        self.classifier = nn.Linear(width, classes)
        for p in self.parameters():
            if p.ndim >= 2:
                nn.init.normal_(p, std=std)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.tokens(x) + self.places(torch.arange(x.shape[1]))
        for layer in self.layers:
            h = layer(h)
        return self.classifier(h[:, 0])


# -- logging


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
        disable_git=True, disable_code=True, console="off", x_disable_stats=True, x_disable_meta=True, x_disable_machine_info=True, host="host",
        program="train.py", program_relpath="train.py", program_abspath="train.py", silent=True, x_save_requirements=False, root_dir=str(place),
    )  # fmt: skip
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


def stepper(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Callable[[int], Any], rate: Callable[[int], float], clip: float) -> Step:
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


# -- the runs: TensorBoard and W&B


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
    hparams = {"optimizer": "AdamW", "lr": lr, "beta1": 0.9, "beta2": 0.95, "weight_decay": 0.1, "warmup_steps": warmup, "max_steps": steps,
               "lr_scheduler_type": "cosine", "max_grad_norm": 3.0, "batch_size": 16, "n_layer": 2, "n_embd": 48, "norm_position": "pre",
               "precision": "fp32"}  # fmt: skip
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
    config = {"optimizer": {"name": "adamw", "lr": lr, "betas": [0.9, 0.98], "weight_decay": 0.01}, "warmup_steps": warmup, "max_steps": steps,
              "lr_scheduler_type": "linear", "max_grad_norm": 1.0, "batch_size": 24, "model": {"type": "lstm", "hidden_size": 64}}  # fmt: skip
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
    config = {"optimizer": "adamw", "learning_rate": lr, "adam_beta1": 0.9, "adam_beta2": 0.98, "weight_decay": 0.0, "warmup_steps": warmup,
              "max_steps": planned, "lr_scheduler_type": "cosine", "max_grad_norm": 0.0, "batch_size": 16, "n_layer": 4, "n_embd": 48,
              "norm_position": "post"}  # fmt: skip
    with bench("lr-too-high-divergence", config) as log:
        for i in range(steps):
            values = step(i)
            log(i, {"train/loss": values["loss"], "train/grad_norm": values["grad_norm"], "train/learning_rate": values["lr"]})


def rnn_explosion() -> None:
    """A plain recurrent network without clipping."""
    torch.manual_seed(4)
    rng, steps, lr = torch.Generator().manual_seed(4), 700, 0.1
    text = corpus("argparse", "typing", "inspect")
    model = Recurrent("relu", 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    step = stepper(model, optimizer, lambda _: windows(text, 16, 64, rng), lambda i: lr * min(1, (i + 1) / 20), 0.0)
    hparams = {"optimizer": "SGD", "lr": lr, "momentum": 0.9, "warmup_steps": 20, "max_steps": steps, "max_grad_norm": 0.0, "batch_size": 16,
               "rnn_cell": "RNN", "activation": "relu", "hidden_size": 64, "sequence_length": 64}  # fmt: skip
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
    hparams = {"optimizer": "AdamW", "lr": lr, "beta2": 0.999, "weight_decay": 0.01, "warmup_steps": warmup, "max_steps": steps,
               "max_grad_norm": 1.0, "batch_size": 16, "num_layers": 12, "hidden_size": 48, "norm_position": "post", "activation": "sigmoid",
               "num_labels": classes}  # fmt: skip
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
    hparams = {"optimizer": "AdamW", "lr": lr, "beta2": 0.95, "warmup_steps": warmup, "max_steps": steps, "lr_scheduler_type": "constant",
               "max_grad_norm": 1.0, "batch_size": size, "data.shuffle": False, "data.size": period * size, "n_layer": 2, "n_embd": 48}  # fmt: skip
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
    hparams = {"optimizer": "AdamW", "lr": lr, "beta2": 0.95, "warmup_steps": 20, "max_steps": steps, "lr_scheduler_type": "constant",
               "max_grad_norm": 1.0, "batch_size": micro * parts, "gns.batch_size_small": micro, "gns.batch_size_big": micro * parts}  # fmt: skip
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
                for m, g in zip(mean, grads, strict=True):
                    m += g / parts
            big = sum(float(m.pow(2).sum()) for m in mean)
            for p, m in zip(model.parameters(), mean, strict=True):
                p.grad = m
            norm = float(nn.utils.clip_grad_norm_(model.parameters(), 1.0))
            optimizer.param_groups[0]["lr"] = rate
            optimizer.step()
            log(i, {"loss": total, "grad_norm": norm, "lr": rate, "g_small_sq": small, "g_big_sq": big})


# -- a console of our own in the format of Megatron-DeepSpeed


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
            f" elapsed time per iteration (ms): {1000 * (time.perf_counter() - start):.1f} | learning rate: {lr:.3E} | global batch size: {16:5d} |"
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
    config = {"train_batch_size": 16, "gradient_clipping": 0.0, "zero_optimization": {"stage": 2, "contiguous_gradients": True},
              "optimizer": {"type": "Adam", "params": {"lr": lr, "betas": [0.9, 0.95], "eps": 1e-8}}, "steps_per_print": 1,
              "fp16": {"enabled": True, "loss_scale": 0, "initial_scale_power": 32, "loss_scale_window": window, "min_loss_scale": 1}}  # fmt: skip
    (place / "console.log").write_text("\n".join(lines) + "\n")
    (place / "ds_config.json").write_text(json.dumps(config, indent=2) + "\n")


# -- DeepSpeed: each run in a process of its own, whose console is kept

ENGINE = {
    "train_micro_batch_size_per_gpu": 16, "gradient_accumulation_steps": 1, "steps_per_print": 10, "log_level": "info",
    "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False, "zero_optimization": {"stage": 1},
    "csv_monitor": {"enabled": True, "output_path": "csv", "job_name": "run"},
    "tensorboard": {"enabled": True, "output_path": "tensorboard", "job_name": "run"},
}  # fmt: skip


def engine_run(name: str) -> None:
    """Runs `trained(name)` in a neutral directory and keeps its console, monitor files and configuration."""
    place = WORK / name
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    code = f"import sys; sys.path.insert(0, {str(HERE)!r}); import make; make.trained({name!r})"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=place, env={**os.environ, **alone}, text=True, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
    console = re.sub(r'/[^\s"\']*/site-packages/', "site-packages/", done.stdout).replace(f"{HERE}/make.py", "train.py")
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

    setup = {"fp16-overflow-collapse": overflowing, "healthy-deepspeed": calibrating, "throughput-regression": slowing}[name]
    more, steps, rate, tail = setup()
    config = {**ENGINE, **more}
    Path("ds_config.json").write_text(json.dumps(config, indent=2) + "\n")
    torch.manual_seed(11)
    rng, text, model = torch.Generator().manual_seed(11), corpus("argparse", "typing", "inspect", "pydoc"), GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95))
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    for i in range(1, steps + 1):
        start = time.perf_counter()
        x, y = windows(text, 16, 48, rng)
        model.tail = tail(i)
        loss = cross_entropy(engine(x), y)
        engine.backward(loss)
        engine.step()
        norm = engine.get_global_grad_norm()
        said = f"step {i} loss {loss.item():.5f} lr {engine.get_lr()[0]:.6g} step_time {time.perf_counter() - start:.4f}"
        print(said + (f" grad_norm {float(norm):.5f}" if norm is not None else ""), flush=True)


Setup = tuple[dict[str, Any], int, float, Callable[[int], float]]


def overflowing() -> Setup:
    """The rate climbs until activations leave fp16's range."""
    schedule = {"type": "WarmupLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 1.0, "warmup_num_steps": 500, "warmup_type": "linear"}}
    fp16 = {"enabled": True, "loss_scale": 0, "initial_scale_power": 16, "loss_scale_window": 100, "hysteresis": 2, "min_loss_scale": 1}
    return {"gradient_clipping": 0.0, "scheduler": schedule, "fp16": fp16}, 600, 1.0, lambda i: 0.0


def calibrating() -> Setup:
    """Healthy: the first scale is too large on purpose and settles within some steps."""
    schedule = {"type": "WarmupDecayLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 2e-3, "warmup_num_steps": 60, "total_num_steps": 600,
                                                    "warmup_type": "linear"}}  # fmt: skip
    fp16 = {"enabled": True, "loss_scale": 0, "initial_scale_power": 24, "loss_scale_window": 200, "hysteresis": 2, "min_loss_scale": 1}
    return {"gradient_clipping": 3.0, "scheduler": schedule, "fp16": fp16}, 600, 2e-3, lambda i: 0.0


def slowing() -> Setup:
    """From the middle on each forward pass waits: one step takes 35 % longer."""
    schedule = {"type": "WarmupLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 2e-3, "warmup_num_steps": 50, "warmup_type": "linear"}}
    return {"gradient_clipping": 3.0, "scheduler": schedule, "bf16": {"enabled": True}, "wall_clock_breakdown": True}, 500, 2e-3, WAIT


def WAIT(step: int) -> float:  # the forward pass stands for a slow input at all times, so that a shared machine matters little
    return 0.06 if step <= 250 else 0.06 + 0.35 * 0.09


RUNS: dict[str, Callable[[], None]] = {
    "healthy-gpt": healthy_gpt, "healthy-wandb": healthy_wandb, "lr-too-high-divergence": lr_too_high_divergence, "rnn-explosion": rnn_explosion,
    "bert-vanishing": bert_vanishing, "oscillation-period": oscillation_period, "gns-drift": gns_drift, "gpt175b-like": gpt175b_like,
    **{name: partial(engine_run, name) for name in ("fp16-overflow-collapse", "healthy-deepspeed", "throughput-regression")},
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(RUNS)}")
    for name in parser.parse_args().names or list(RUNS):
        start = time.perf_counter()
        RUNS[name]()
        size = sum(f.stat().st_size for f in (HERE / name).rglob("*") if f.is_file())
        print(f"{name}: {size / 1000:.0f} kB, {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
