"""The catalogue of metrics: canonical name, unit, good direction, the shapes that are looked for, and aliases in the wild.

`canonical(name, group)` maps a logged tag to its canonical name: exact aliases first, then patterns; a tag that is not
known keeps its own name. Sources of the aliases: the logging code of the frameworks (see `docs/glossary.md`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

NOISY = ("nonfinite", "spike", "growth", "level-shift", "period", "drift", "plateau", "short-break")


@dataclass(frozen=True, slots=True)
class Metric:
    """One kind of measurement. `shapes` are the detectors that look at it; `multiplicative` means noise scales with level."""

    name: str
    unit: str = ""
    good: str = "none"  # down | up | none
    multiplicative: bool = False
    shapes: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()


_METRICS = (
    Metric(
        "loss/train",
        "nats",
        "down",
        True,
        NOISY,
        (
            "loss",
            "train/loss",
            "train_loss",
            "train_loss_step",
            "training_loss",
            "loss/train",
            "train/loss_step",
            "tr_loss",
            "Train/Samples/train_loss",
            "lm loss",
            "lm-loss",
            "lm_loss",
            "lm-loss-training/lm loss",
            "train/lm_loss",
            "loss/train/total",
            "train/CE loss",
            "loss_metrics/global_avg_loss",
            "reduced_train_loss",
            "learning/loss",
            "learning/lm_loss",
            "total_loss",
            "epoch_loss",
            "cross_entropy",
            "actor/pg_loss",
            "train/act_loss",
            "act_loss",
            "policy_loss",
            "loss_mean",
            "train/cross_entropy",
            "metrics/train/cross_entropy",
            "training/loss",
            "Loss/training",
            "nll_loss",
            "train_nll_loss",
            "loss_train",
            "trl",
        ),
    ),
    Metric(
        "loss/eval",
        "nats",
        "down",
        True,
        ("nonfinite", "drift", "plateau", "eval-minimum"),
        (
            "eval_loss",
            "eval/loss",
            "val_loss",
            "val/loss",
            "validation_loss",
            "valid_loss",
            "lm loss validation",
            "lm loss value",
            "lm-loss-validation/lm loss validation",
            "validation/lm_loss",
            "Train/Samples/eval_loss",
            "validation_metrics/loss",
            "Loss/test",
            "Loss/val",
            "Loss/valid",
            "Loss/validation",
            "Loss/eval",
            "test_loss",
            "test/loss",
            "dev_loss",
            "val/cross_entropy",
            "metrics/val/cross_entropy",
            "metrics/eval/cross_entropy",
            "validation/loss",
            "valid/loss",
            "dev/loss",
            "loss_val",
            "tel",
        ),
    ),
    Metric(
        "grad_norm",
        "",
        "none",
        True,
        ("nonfinite", "spike", "growth", "level-shift", "period", "drift", "short-break"),
        (
            "grad_norm",
            "train/grad_norm",
            "grad-norm",
            "grad norm",
            "grad-norm/grad-norm",
            "actor/grad_norm",
            "optim/total grad norm",
            "l2_norm/grad/global",
            "gnorm",
            "learning/raw_grad_norm",
            "grad/norm/total",
            "grad_2.0_norm_total",
            "gradient_norm",
            "train/grad/norm",
            "global_grad_norm",
            "total_norm",
            "Train/grad_norm",
            "gradients/global_norm",
            "grads/global_norm",
            "train/gradient_norm",
            "train/global_grad_norm",
            "optim/grad_norm",
            "gradnorm",
            "grad_norm/total",
            "norm",
            "gradients/norm",
        ),
    ),
    Metric("grad_norm/post_clip", "", "none", True, ("nonfinite",), ("learning/grad_norm", "optim/clip_update/post_clip_norm")),
    Metric(
        "lr",
        "",
        "none",
        True,
        ("exact-change",),
        (
            "lr",
            "learning_rate",
            "train/learning_rate",
            "train/lr",
            "Train/Samples/lr",
            "learning-rate",
            "learning-rate/learning-rate",
            "learning rate",
            "optim/lr",
            "optim/LR",
            "optim/LR (group 0)",
            "optim/learning_rate",
            "actor/lr",
            "lr-AdamW",
            "lr-SGD",
            "lr-Adam",
            "lr-AdamW/pg1",
            "lr-DecoupledAdamW/group0",
            "learning/current_learning_rate",
            "epoch_learning_rate",
            "lr/pg0",
            "learning_rate/group_0",
            "train/lr_group_0",
        ),
    ),
    Metric(
        "loss_scale",
        "",
        "none",
        True,
        ("scale-path",),
        (
            "loss_scale",
            "Train/Samples/loss_scale",
            "loss-scale",
            "loss scale",
            "loss-scale/loss-scale",
            "train/loss_scale",
            "grad_scale",
            "amp_scale",
            "amp/scale",
            "scaler",
            "optim/loss_scale",
            "fp16/loss_scale",
            "fp16/scale",
            "precision/loss_scale",
        ),
    ),
    Metric(
        "steps/skipped",
        "steps",
        "down",
        False,
        (),
        ("number of skipped iterations", "optim/step skipped", "optim/skipped_step"),
    ),
    Metric(
        "steps/skipped_total",
        "steps",
        "down",
        False,
        (),
        ("skipped", "skipped_steps", "train/skipped_steps", "amp/skipped", "optim/overflow_count", "overflow_count", "overflows"),
    ),
    Metric("steps/nan", "steps", "down", False, (), ("number of nan iterations", "frac_non_finite_loss")),
    Metric(
        "time/step",
        "s",
        "down",
        True,
        ("level-shift", "stalls", "drift", "short-break"),
        (
            "elapsed time per iteration (s)",
            "iteration-time",
            "iteration_time",
            "iteration-time/iteration-time",
            "iter time (s)",
            "throughput/elapsed_ms_per_iteration",
            "time_metrics/end_to_end(s)",
            "perf/step_time_seconds",
            "timing_s/step",
            "step_time",
            "time_per_step",
            "time/step",
            "time/step_s",
            "train/step_time",
            "perf/step_time",
            "runtime/iteration_time",
            "step_time_s",
            "seconds_per_step",
            "time per step",
            "batch_time",
            "train/time_per_step",
            "iter_time",
            "E2E latency",
        ),
    ),
    Metric(
        "time/step_ms",
        "ms",
        "down",
        True,
        (),
        ("elapsed time per iteration (ms)", "time_per_iteration_ms", "step_avg", "step_time_ms", "time_ms"),
    ),
    Metric(
        "time/data", "s", "down", True, ("level-shift", "stalls"), ("data_time", "time_metrics/data_loading(s)", "throughput/loading_time")
    ),
    Metric("time/forward", "ms", "down", True, ("level-shift",), ("time (ms)/fwd", "fwd", "Train/Samples/elapsed_time_ms_forward")),
    Metric("time/backward", "ms", "down", True, ("level-shift",), ("time (ms)/bwd", "bwd", "Train/Samples/elapsed_time_ms_backward")),
    Metric("time/optimizer", "ms", "down", True, ("level-shift",), ("time (ms)/step", "Train/Samples/elapsed_time_ms_step")),
    Metric(
        "time/comm",
        "ms",
        "down",
        True,
        ("level-shift",),
        ("time (ms)/bwd_allreduce", "bwd_allreduce", "Train/Samples/elapsed_time_ms_backward_allreduce"),
    ),
    Metric(
        "throughput/samples",
        "1/s",
        "up",
        True,
        ("level-shift", "short-break"),
        (
            "samples per second",
            "samples/sec",
            "CurrSamplesPerSec",
            "SamplesPerSec",
            "train_samples_per_second",
            "throughput/samples_per_sec",
            "samples_per_second",
            "samples_per_sec",
            "time/examples_per_s",
            "Time/samples_per_sec",
            "iteration-time/samples-per-second",
            "examples_per_second",
            "runtime/samples_per_sec",
            "train/samples_per_second",
            "CurSamplesPerSec",
            "throughput",
            "images_per_sec",
        ),
    ),
    Metric("throughput/running", "1/s", "up", True, (), ("RunningAvgSamplesPerSec", "AvgSamplesPerSec")),
    Metric(
        "throughput/tokens",
        "1/s",
        "up",
        True,
        ("level-shift", "short-break"),
        (
            "tokens_per_sec",
            "tps",
            "wps",
            "tokens per gpu per second (tgs)",
            "throughput(tps)",
            "throughput/device/TPS",
            "train_tokens_per_second",
            "throughput/tokens_per_sec",
            "runtime/tokens_per_sec",
            "tokens_per_second_per_gpu",
            "perf/tokens_per_sec",
            "tokens_per_second",
            "train/tokens_per_second",
            "perf/throughput",
            "throughput/tokens_per_second",
            "perf/per_device_tokens_per_sec",
        ),
    ),
    Metric("mfu", "", "up", True, ("level-shift",), ("mfu", "mfu(%)", "throughput/device/MFU", "throughput/device/mfu", "perf/mfu/actor")),
    Metric(
        "noise_scale",
        "samples",
        "none",
        True,
        ("drift", "level-shift", "collapse"),
        (
            "train/noise_scale",
            "gradient_noise_scale",
            "noise_scale",
            "gns",
            "train/gns",
            "ddp/gns",
            "noise-scale/noise-scale",
            "noise_scale/simple",
            "gns/simple",
        ),
    ),
    Metric(
        "grad_sq/small",
        "",
        "none",
        True,
        (),
        (
            "g_small_sq",
            "train/g_small_sq",
            "gns_small_sq",
            "grad_sq_small",
            "gradients/sq_small",
            "noise_scale/g_small_sq",
            "noise-scale/g-small-sq",
            "gns/g_small_sq",
            "train/gsmall2",
            "grad_sq_norm_small",
            "micro_grad_sq",
            "gsmall2",
        ),
    ),
    Metric(
        "grad_sq/big",
        "",
        "none",
        True,
        (),
        (
            "g_big_sq",
            "train/g_big_sq",
            "gns_big_sq",
            "grad_sq_big",
            "gradients/sq_big",
            "noise_scale/g_big_sq",
            "noise-scale/g-big-sq",
            "gns/g_big_sq",
            "train/gbig2",
            "grad_sq_norm_big",
            "gbig2",
        ),
    ),
    Metric(
        "param_norm",
        "",
        "none",
        True,
        ("drift", "level-shift", "nonfinite"),
        (
            "params-norm",
            "params norm",
            "params-norm/params-norm",
            "param_norm",
            "train/param_norm",
            "learning/param_norm",
            "params/norm/total",
            "params/global_norm",
            "weight_norm",
            "train/weight_norm",
            "parameter_norm",
            "optimizer/weight_l2",
        ),
    ),
    Metric("update_ratio", "", "none", True, ("level-shift",), ("update_ratio", "update_to_weight", "update/ratio", "train/update_ratio")),
    Metric("activation/dead", "", "down", False, ("level-shift",), ("activations/dead_fraction", "dead_fraction", "dead_relu_fraction")),
    Metric("grad/zeros", "", "down", False, ("level-shift",), ("num-zeros", "num zeros", "zero_grad_frac", "zero_grad_fraction")),
    Metric(
        "accuracy",
        "",
        "up",
        False,
        ("plateau", "level-shift"),
        (
            "accuracy",
            "acc",
            "train/accuracy",
            "train/acc",
            "train_accuracy",
            "train_acc",
            "Accuracy/train",
            "metrics/train/accuracy",
            "mean_token_accuracy",
            "train/mean_token_accuracy",
            "epoch_accuracy",
            "acc_mean",
            "rewards/accuracies",
        ),
    ),
    Metric(
        "accuracy/eval",
        "",
        "up",
        False,
        ("plateau",),
        (
            "val_accuracy",
            "eval_accuracy",
            "eval/accuracy",
            "eval/acc",
            "val_acc",
            "Accuracy/test",
            "Accuracy/val",
            "metrics/val/accuracy",
            "test_acc",
            "test_accuracy",
            "val/acc",
            "val/accuracy",
            "valid_acc",
            "eval_acc",
        ),
    ),
    Metric(
        "batch_size",
        "samples",
        "none",
        False,
        (),
        (
            "batch-size",
            "global batch size",
            "batch-size/batch-size",
            "train/global batch size",
            "batch_size",
            "train/batch_size",
            "bs",
            "bsz",
        ),
    ),
    Metric(
        "sequence_length",
        "tokens",
        "none",
        False,
        (),
        ("curriculum seqlen", "actual seqlen", "sequence_length", "seq_len", "seqlen", "train/seq_len", "train/seqlen"),
    ),
    Metric("perplexity", "", "down", True, (), ("perplexity", "ppl", "train/PPL", "learning/perplexity", "train_perplexity")),
    Metric(
        "epoch", "epochs", "none", False, (), ("epoch", "train/epoch", "time/epoch", "train/current_epoch", "training/epoch", "data/epoch")
    ),
    Metric("samples", "samples", "none", False, (), ("consumed samples", "consumed_samples", "time/sample", "samples_seen")),
    Metric(
        "tokens", "tokens", "none", False, (), ("num_input_tokens_seen", "total_tokens", "num_tokens", "consumed tokens", "consumed_tokens")
    ),
    Metric(
        "global_step", "steps", "none", False, (), ("train/global_step", "trainer/global_step", "global_step", "step", "iter", "iteration")
    ),
    Metric("memory", "", "none", False, (), ("MemAllocated", "MaxMemAllocated", "memory", "memory/max_reserved(GiB)")),
    # derived by `signals`, never logged under these names
    Metric("clip_ratio", "", "none", True, ("mostly-above",)),
    Metric("overflow_rate", "", "down", False, ("level-shift",)),
)

CATALOGUE: Mapping[str, Metric] = MappingProxyType({m.name: m for m in _METRICS})
LAYER = Metric("grad_norm/layer", "", "none", True, ("depth-profile",))
UNKNOWN = Metric("", "", "none", False, ("nonfinite",))

_SPLITS = {
    "train": "train",
    "training": "train",
    "trn": "train",
    "tr": "train",
    "val": "eval",
    "valid": "eval",
    "validation": "eval",
    "eval": "eval",
    "test": "eval",
    "dev": "eval",
}
_OTHER_AXIS = re.compile(r"(?:[ _-]vs[ _-](?:samples|tokens)|__MIN|__MAX)$", re.I)
_LAYER_PATTERNS = (
    re.compile(
        r"^(?:l2_norm/grad|grad/norm|gradients?[/_]norms?|grads?_norms?|grad_2\.0_norm|gradnorms?|gradients?|grads?)[/._](?P<layer>.+?)(?:/norm)?$",
        re.I,
    ),
    re.compile(r"^(?P<layer>.+?)[/._](?:grad_norm|gradnorm|grad/norm|grad_l2)$", re.I),
    re.compile(r"^gnorm_(?P<layer>.+)$", re.I),
)
_NOT_A_LAYER = re.compile(
    r"(?:^|[/._])(?:total|global|all|clip\w*|post\w*|pre_clip|max|min|mean|std|zeros|step|steps|avg|average|sq\w*|raw\w*|norm|train|eval|val)$",
    re.I,
)


def normal(tag: str) -> str:
    """A tag with case folded and `.`, `/`, `_`, `-`, `:` and spaces as one separator; run prefixes stripped."""
    flat = re.sub(r"[./_\-:\s]+", "_", tag.strip().lower()).strip("_")
    return re.sub(r"^(?:rank|replica)_\d+_|^trainer_(?!global)", "", flat)


_EXACT: Mapping[str, str] = MappingProxyType({normal(a): m.name for m in _METRICS for a in (m.name, *m.aliases)})


def is_other_axis(tag: str) -> bool:
    """Whether the tag is another tag's series on another axis (` vs samples`, `__MIN`), not a signal of its own."""
    return bool(_OTHER_AXIS.search(tag))


@lru_cache(maxsize=65536)
def canonical(tag: str, group: str = "") -> str:
    """The canonical name of a logged tag; the tag itself (behind its group) when it is not in the catalogue.

    `group` is the sub-run the tag stands in: `loss` in `validation` is `loss/eval`.
    """
    split = _SPLITS.get(normal(group.rsplit("/", maxsplit=1)[-1])) if group else None
    if split == "eval" and _EXACT.get(normal(tag)) in ("loss/train", "loss/eval"):
        return "loss/eval"
    if split == "eval" and _EXACT.get(normal(tag)) in ("accuracy", "accuracy/eval"):
        return "accuracy/eval"
    if is_other_axis(tag):
        return f"{group}/{tag}" if group else tag
    known = _EXACT.get(normal(tag))
    if known and (not group or split == "train"):
        return known
    if not group:
        found = layer_of(tag)
        if found:
            return f"grad_norm/layer/{found}"
    return f"{group}/{tag}" if group else tag


def layer_of(tag: str) -> str | None:
    """The layer name inside a per-layer gradient norm's tag, or None."""
    for pattern in _LAYER_PATTERNS:
        hit = pattern.match(tag)
        if hit and not _NOT_A_LAYER.search(hit["layer"]) and normal(tag) not in _EXACT:
            return hit["layer"]
    return None


def metric(name: str) -> Metric:
    """The catalogue's entry for a canonical name; layers share one, unknown names get the default one."""
    if name.startswith("grad_norm/layer/"):
        return LAYER
    return CATALOGUE.get(name, UNKNOWN)


_DEPTH = re.compile(r"\d+")
_FRONT = re.compile(r"embed|wte|wpe|tok_|patch|stem|conv1\b|input", re.I)
_BACK = re.compile(r"head|lm_|classif|output|fc\b|final|ln_f|logits|decoder\.bias|cls", re.I)


def depth_of(layer: str) -> tuple[int, int, str]:
    """A sort key from input to output: embeddings, then numbered blocks, then heads."""
    numbers = _DEPTH.findall(layer)
    if _FRONT.search(layer) and not numbers:
        return (0, 0, layer)
    if _BACK.search(layer) and not numbers:
        return (2, 0, layer)
    return (1, int(numbers[0][:9]) if numbers else 0, layer)
