"""How to log what was not logged, in each framework."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from types import MappingProxyType

# -- how to log what was not logged

_SCALAR = 'writer.add_scalar("{tag}", {what}, step)  # torch.utils.tensorboard.SummaryWriter'
_NOISE = '''\
def squared_norm(grads):
    return sum(float(g.detach().float().pow(2).sum()) for g in grads)

def backward_and_log_noise(model, micro_batches, loss_of, writer, step):
    """Backward over the micro-batches; logs the mean squared norm of one and the squared norm of their mean."""
    params = [p for p in model.parameters() if p.requires_grad]
    mean = [torch.zeros_like(p, dtype=torch.float32) for p in params]
    small = 0.0
    for micro in micro_batches:
        grads = torch.autograd.grad(loss_of(model, micro), params, materialize_grads=True, allow_unused=True)
        small += squared_norm(grads) / len(micro_batches)
        for total, grad in zip(mean, grads):
            total += grad.float() / len(micro_batches)
    for param, total in zip(params, mean):
        param.grad = total.to(param.dtype)  # then clip and optimizer.step() as usual
    writer.add_scalar("g_small_sq", small, step)
    writer.add_scalar("g_big_sq", squared_norm(mean), step)

# once, so that the scale can be computed: the samples in one micro-batch and in all of them
writer.add_hparams({"gns.batch_size_small": micro_batch, "gns.batch_size_big": micro_batch * accumulation}, {})'''
_LAYERS = """\
for name, p in model.named_parameters():  # after backward, before clipping; every 10 steps is enough
    if p.grad is not None:
        writer.add_scalar(f"grad_norm/{name}", p.grad.norm().item(), step)"""
_TIMED = """\
start = time.perf_counter()
train_step(batch)  # on a GPU: torch.cuda.synchronize() before reading the clock
writer.add_scalar("step_time", time.perf_counter() - start, step)"""
_NORM = """\
grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)  # returns the norm before clipping
writer.add_scalar("grad_norm", grad_norm.item(), step)"""
_EVAL = """\
model.eval()
with torch.no_grad():
    eval_loss = sum(loss_of(model, batch).item() for batch in eval_batches) / len(eval_batches)
model.train()
writer.add_scalar("eval/loss", eval_loss, step)"""
_MONITOR = '{"tensorboard": {"enabled": true, "output_path": "logs", "job_name": "run"}, "wall_clock_breakdown": true}'
_HF_LAYERS = """\
class LayerNorms(TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        norms = {f"grad_norm/{n}": p.grad.norm().item() for n, p in model.named_parameters() if p.grad is not None}
        if state.global_step % 10 == 0:
            print(json.dumps({"step": state.global_step, **norms}))"""
_PL_NORM = """\
def on_before_optimizer_step(self, optimizer):
    self.log_dict(lightning.pytorch.utilities.grad_norm(self, norm_type=2))"""

_LOGGING: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "loss/train": {
            "pytorch": _SCALAR.format(tag="loss/train", what="loss.item()"),
            "hf": "TrainingArguments(logging_steps=1, logging_nan_inf_filter=False)",
            "megatron": "--log-interval 1",
            "lightning": 'self.log("train/loss", loss, on_step=True)',
        },
        "loss/eval": {
            "pytorch": _EVAL,
            "hf": 'TrainingArguments(eval_strategy="steps", eval_steps=100)',
            "megatron": "--eval-interval 100 --eval-iters 10",
            "lightning": 'self.log("val/loss", loss)  # in validation_step',
        },
        "grad_norm": {
            "pytorch": _NORM,
            "deepspeed": 'writer.add_scalar("grad_norm", float(engine.get_global_grad_norm() or 0.0), step)',
            "hf": "TrainingArguments(logging_steps=1, max_grad_norm=1.0)",
            "megatron": "--log-interval 1 --log-params-norm --log-num-zeros-in-grad",
            "lightning": _PL_NORM,
        },
        "grad_norm/layer": {"pytorch": _LAYERS, "hf": _HF_LAYERS, "lightning": _PL_NORM},
        "lr": {
            "pytorch": _SCALAR.format(tag="lr", what='optimizer.param_groups[0]["lr"]'),
            "deepspeed": _MONITOR,
            "hf": "TrainingArguments(logging_steps=1)",
            "megatron": "--log-interval 1 --tensorboard-dir logs",
            "lightning": 'Trainer(callbacks=[LearningRateMonitor("step")])',
        },
        "loss_scale": {
            "pytorch": _SCALAR.format(tag="loss_scale", what="scaler.get_scale()"),
            "deepspeed": _MONITOR,
            "megatron": "--log-loss-scale-to-tensorboard --tensorboard-dir logs",
        },
        "time/step": {
            "pytorch": _TIMED,
            "deepspeed": _MONITOR,
            "megatron": "--log-interval 1 --log-timers-to-tensorboard --tensorboard-dir logs",
            "lightning": 'Trainer(callbacks=[DeviceStatsMonitor()], profiler="simple")',
        },
        "noise_scale": {"pytorch": _NOISE},
    }
)
_SAME = MappingProxyType(
    {
        "grad_sq/small": "noise_scale",
        "grad_sq/big": "noise_scale",
        "clip_ratio": "grad_norm",
        "overflow_rate": "loss_scale",
        "time/step_ms": "time/step",
    }
)
_CALLED = MappingProxyType(
    {
        "hf_trainer": "hf",
        "huggingface": "hf",
        "transformers": "hf",
        "trl": "hf",
        "megatron-lm": "megatron",
        "megatron-deepspeed": "megatron",
        "gpt-neox": "megatron",
        "pytorch-lightning": "lightning",
        "torch": "pytorch",
    }
)


def logging_snippet(metric: str, framework: str | None) -> str:
    """How to log this metric (canonical name) in this framework; plain PyTorch where the framework has no own way."""
    name = metric.split("|", maxsplit=1)[0].removesuffix("/*")
    name = "grad_norm/layer" if name.startswith("grad_norm/layer") else _SAME.get(name, name)
    called = (framework or "pytorch").lower().replace(" ", "-")
    ways = _LOGGING.get(name)
    if ways is None:
        return _SCALAR.format(tag=name, what=re.sub(r"\W+", "_", name).strip("_") or "value")
    return ways.get(_CALLED.get(called, called), ways["pytorch"])


def usual() -> dict[str, str]:
    """The snippets that make a run judgeable: loss, gradient norm before clipping, learning rate, at every step."""
    return {
        "pytorch": "\n".join(logging_snippet(m, "pytorch") for m in ("loss/train", "grad_norm", "lr")),
        "deepspeed": json.dumps(json.loads(_MONITOR), indent=2),
        "hf": "TrainingArguments(logging_steps=1, logging_nan_inf_filter=False)",
        "megatron": "--log-interval 1 --log-params-norm --log-num-zeros-in-grad --log-timers-to-tensorboard",
        "lightning": f"{logging_snippet('loss/train', 'lightning')}\n{_PL_NORM}",
    }
