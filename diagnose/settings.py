"""The catalogue of settings: canonical names and how frameworks spell them.

`canonical(settings)` maps what readers found to the names that rules and fixes use (`docs/settings.md`); everything else
keeps its own name. A value of `"auto"` is not a value.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from diagnose.model import Setting

# canonical name -> spellings (dotted, compared without case and with `-`, ` ` and `.` as `_`), the surer ones first
_SPELLINGS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "optimizer.name": ("optimizer.type", "optim.name", "optimizer.name", "optim", "optimizer", "optimizer_name", "optimizer_type"),
        "optimizer.lr": (
            "optimizer.params.lr",
            "optim.lr",
            "learning_rate",
            "lr",
            "optimizer.lr",
            "max_lr",
            "peak_lr",
            "args.lr",
            "optimizer.learning_rate",
            "base_lr",
            "training.lr",
            "train.lr",
            "scheduler.params.warmup_max_lr",
        ),
        "optimizer.beta1": ("optim.beta1", "adam_beta1", "beta1", "optimizer.beta1"),
        "optimizer.beta2": ("optim.beta2", "adam_beta2", "beta2", "optimizer.beta2"),
        "optimizer.betas": ("optimizer.params.betas", "betas", "optim.betas", "optimizer.betas"),
        "optimizer.eps": ("optimizer.params.eps", "optim.eps", "adam_epsilon", "adam_eps", "eps", "optimizer.eps"),
        "optimizer.momentum": ("optim.momentum", "momentum", "sgd_momentum", "optimizer.momentum", "optimizer.params.momentum"),
        "optimizer.weight_decay": ("optimizer.params.weight_decay", "optim.weight_decay", "weight_decay", "optimizer.weight_decay"),
        "schedule.kind": ("scheduler.type", "schedule.kind", "lr_scheduler_type", "lr_decay_style", "scheduler", "schedule"),
        "schedule.warmup_steps": (
            "scheduler.params.warmup_num_steps",
            "schedule.warmup",
            "warmup_steps",
            "lr_warmup_iters",
            "warmup_iters",
            "warmup",
            "num_warmup_steps",
            "schedule.warmup_steps",
        ),
        "schedule.total_steps": ("scheduler.params.total_num_steps", "schedule.decay_steps", "lr_decay_iters", "schedule.total_steps"),
        "schedule.min_lr": ("schedule.min_lr", "min_lr", "scheduler.params.warmup_min_lr"),
        "schedule.period": ("schedule.period",),
        "train.max_steps": ("max_steps", "train_iters", "max_iters", "total_steps", "steps"),
        "gradient_clipping": (
            "gradient_clipping",
            "optim.grad_clip",
            "max_grad_norm",
            "clip_grad",
            "grad_clip",
            "gradient_clip_val",
            "clip",
            "clip_norm",
            "optimizer.grad_clip",
            "max_norm",
        ),
        "batch.global": ("train_batch_size", "global_batch_size", "data.batch_size", "batch_size", "gns.batch_size_big", "bsize"),
        "batch.micro": ("train_micro_batch_size_per_gpu", "micro_batch_size", "per_device_train_batch_size", "gns.micro_batch_size"),
        "batch.accumulation": ("gradient_accumulation_steps", "accumulate_grad_batches", "gradient_accumulation"),
        "gns.small": (
            "gns.batch_size_small",
            "gns.b_small",
            "b_small",
            "batch_size_small",
            "gns.micro_batch_size",
            "micro_batch_size",
            "gns.small_batch",
            "batch_small",
        ),
        "gns.big": ("gns.batch_size_big", "gns.b_big", "b_big", "batch_size_big", "gns.big_batch", "batch_big"),
        "loss_scale.static": ("fp16.loss_scale", "loss_scale", "fp16.static"),
        "loss_scale.initial_power": ("fp16.initial_scale_power",),
        "loss_scale.initial": ("fp16.initial_scale", "initial_loss_scale"),
        "loss_scale.window": ("fp16.loss_scale_window", "loss_scale_window", "fp16.window"),
        "loss_scale.hysteresis": ("fp16.hysteresis", "hysteresis"),
        "loss_scale.minimum": ("fp16.min_loss_scale", "min_loss_scale", "fp16.min_scale"),
        "fp16": ("fp16.enabled", "fp16", "float16_enabled", "fp16_enabled"),
        "bf16": ("bf16.enabled", "bf16", "bfloat16_enabled"),
        "precision.name": ("precision", "dtype", "torch_dtype", "params_dtype", "mixed_precision", "amp_dtype"),
        "model.norm_position": ("model.norm", "norm_position", "model.norm_position", "norm_first", "normalize_before"),
        "model.layers": ("model.n_layer", "num_layers", "n_layer", "model.layers", "num_hidden_layers", "model.num_layers", "model.depth"),
        "model.hidden": ("model.n_embd", "hidden_size", "n_embd", "model.hidden", "model.hidden_size"),
        "model.activation": ("model.activation", "hidden_act", "activation", "activation_function"),
        "model.kind": ("model.type", "model_type", "arch", "architecture", "model"),
        "model.cell": ("model.cell", "rnn_cell", "cell"),
        "model.vocab": ("vocab_size", "padded_vocab_size", "model.vocab_size"),
        "data.shuffle": ("data.shuffle", "shuffle"),
        "data.size": ("data.size", "dataset_size", "train_size", "num_train_samples"),
        "zero.stage": ("zero_optimization.stage", "zero_optimization_stage", "zero_stage"),
        "world_size": ("world_size", "dist_world_size"),
        "logging_nan_inf_filter": ("logging_nan_inf_filter",),
    }
)


def _flat(name: str) -> str:
    return re.sub(r"[.\-/\s]+", "_", name.strip().lower())


_PREFIXES = ("", "config_", "args_", "arguments_", "hparams_", "json_", "hparam_", "training_args_", "ds_config_")


def _value(value: Any) -> Any:
    """Strings that hold a number or a truth value as that; `auto`, `none` and empty as None; a whole number beyond floats is infinite."""
    if isinstance(value, list):
        return [_value(v) for v in value]
    if not isinstance(value, str):
        huge = isinstance(value, int) and abs(value) > sys.float_info.max
        return math.copysign(math.inf, value > 0 or -1) if huge else value
    text = value.strip()
    low = text.lower()
    if low in ("", "auto", "none", "null"):
        return None
    if low in ("true", "false"):
        return low == "true"
    try:
        return int(text) if re.fullmatch(r"[+-]?\d{1,18}", text) else float(text)
    except ValueError:
        return text


def canonical(settings: Iterable[Setting]) -> dict[str, Setting]:
    """Settings by canonical name; later ones of one spelling win (a console dump follows the file), then the derived ones."""
    by_flat: dict[str, Setting] = {}
    for setting in settings:
        flat = _flat(setting.spelled or setting.name)
        for prefix in _PREFIXES[1:]:
            if flat.startswith(prefix) and len(flat) > len(prefix):
                by_flat.setdefault(flat[len(prefix) :], setting)
        by_flat[flat] = setting
    found: dict[str, Setting] = {}
    for name, spellings in _SPELLINGS.items():
        for spelling in spellings:
            hit = by_flat.get(_flat(spelling))
            if hit is None:
                continue
            value = _value(hit.value)
            if value is None or isinstance(value, (list, dict)) != (name == "optimizer.betas"):
                continue
            found[name] = replace(hit, name=name, value=value)
            break
    _derive(found)
    return found


def _number(found: Mapping[str, Setting], name: str) -> float | None:
    setting = found.get(name)
    value = None if setting is None else setting.value
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if good and value is not None else None


def _derive(found: dict[str, Setting]) -> None:
    """Precision from the two switches, betas from the list, loss scaling from its static value, norm position from words."""
    betas = found.pop("optimizer.betas", None)
    if (
        betas is not None
        and isinstance(betas.value, list)
        and len(betas.value) >= 2
        and all(isinstance(b, (int, float)) for b in betas.value[:2])
    ):
        for name, value in zip(("optimizer.beta1", "optimizer.beta2"), betas.value, strict=False):
            found.setdefault(name, replace(betas, name=name, value=float(value)))
    for switch, precision in (("bf16", "bf16"), ("fp16", "fp16")):
        if switch in found and found[switch].value is True and "precision" not in found:
            found["precision"] = replace(found[switch], name="precision", value=precision)
    named = found.pop("precision.name", None)
    if named is not None and "precision" not in found:
        text = str(named.value).lower()
        short = "bf16" if "bf" in text else "fp16" if ("16" in text or "half" in text) else "fp32" if "32" in text else ""
        if short:
            found["precision"] = replace(named, name="precision", value=short)
    static = _number(found, "loss_scale.static")
    if static is not None:
        found["loss_scale.dynamic"] = replace(found["loss_scale.static"], name="loss_scale.dynamic", value=static == 0)
    power = _number(found, "loss_scale.initial_power")
    if power is not None and "loss_scale.initial" not in found and power < 64:
        found["loss_scale.initial"] = replace(found["loss_scale.initial_power"], name="loss_scale.initial", value=2.0**power)
    norm = found.get("model.norm_position")
    if norm is not None:
        text = str(norm.value).lower()
        value = (
            "pre"
            if text in ("pre", "true", "preln", "pre_ln", "pre-ln")
            else "post"
            if text.startswith("post") or text == "false"
            else text
        )
        found["model.norm_position"] = replace(norm, value=value)
