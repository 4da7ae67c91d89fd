"""The fixes: one imperative sentence each, why it helps, what to expect, what to beware of, and what it changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from diagnose.model import Frozen


@dataclass(frozen=True, slots=True)
class Slot:
    """A value that the rule gives under this name."""

    name: str


@dataclass(frozen=True, slots=True)
class Plan:
    """One planned change: a constant or a slot, and the factor that stands in when the slot stays empty."""

    setting: str
    value: Any
    or_scale: float | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """One fix. `do` is used when all its slots are known (given or by default), `bare` otherwise."""

    do: str
    because: str
    expect: str = ""
    caution: str = ""
    changes: tuple[Plan, ...] = ()
    bare: str = ""
    defaults: Mapping[str, Any] = field(default_factory=Frozen)
    safe: bool = False


def _plans(**settings: Any) -> tuple[Plan, ...]:
    return tuple(Plan(name.replace("__", "."), value) for name, value in settings.items())


LIBRARY: Mapping[str, Entry] = MappingProxyType(
    {
        # -- learning rate and schedule
        "lower-lr": Entry(
            "Lower the peak learning rate to {lr:g}",
            "The update is too large for the curvature that the run has reached.",
            "Gradient and activation norms tend to fall within a few hundred to a thousand steps.",
            "A lower rate alone does not repair weights that have already diverged: restart from a checkpoint before the onset.",
            (Plan("optimizer.lr", Slot("lr"), 0.5),),
            "Halve the peak learning rate",
        ),
        "raise-lr": Entry(
            "Raise the peak learning rate to {lr:g}",
            "The loss still falls steadily and calmly, so larger steps may get there sooner.",
            "The same loss in fewer steps, if the run stays calm.",
            "Keep the warm-up at least as long, and watch the gradient norm.",
            (Plan("optimizer.lr", Slot("lr"), 2.0),),
            "Double the peak learning rate",
        ),
        "add-warmup": Entry(
            "Warm the learning rate up linearly over {steps} steps",
            "Adam's variance estimate needs about 2/(1-β2) steps before it can be trusted, and early curvature is high.",
            "A longer warm-up lowers the sensitivity to the learning rate; by itself it does not always cure later instability.",
            "Keep it below a fifth of the run, or little is left at the peak rate.",
            (Plan("schedule.warmup_steps", Slot("steps")),),
            defaults=Frozen({"steps": 2000}),
        ),
        "rewarm-lr": Entry(
            "After the resume, warm the learning rate up again over {steps} steps",
            "A fresh optimiser state takes steps that are too large until its averages have filled.",
            "The bump after a resume should shrink; it lasts about 1/(1-β2) steps otherwise.",
            "Restoring the full state is the better cure.",
            (Plan("schedule.warmup_steps", Slot("steps")),),
            defaults=Frozen({"steps": 100}),
        ),
        "fix-schedule": Entry(
            "Plan the schedule for the {total_steps} optimiser steps that the run takes, and step it once per optimiser step",
            "The learning rate does not follow the length of the run.",
            "The decay ends where the run ends, and the last part of the run is used.",
            "Only one side may own the schedule: the framework or the trainer.",
            (Plan("schedule.total_steps", Slot("total_steps")), Plan("schedule.step_per", "optimizer-step")),
            "Make the schedule as long as the run, and step it once per optimiser step",
        ),
        "extend-schedule": Entry(
            "Train on: plan the schedule for {total_steps} steps",
            "The loss still falls when the run ends.",
            "A lower final loss, with diminishing returns.",
            "Re-warm the rate if the schedule has already decayed.",
            (Plan("schedule.total_steps", Slot("total_steps"), 2.0),),
            "Plan the schedule for about twice as many steps",
        ),
        "early-stop": Entry(
            "Use early stopping: the best checkpoint is that of step {step}, where the evaluation loss was lowest",
            "Past that point the model fits the training set only.",
            "The checkpoint of that step is the best one on held-out data.",
            "One noisy evaluation is no minimum: look at the median of three.",
            (Plan("train.stop_step", Slot("step")), Plan("train.patience", Slot("patience"))),
            "Use early stopping with a patience of {patience} evaluations",
            Frozen({"patience": 3}),
        ),
        # -- clipping
        "clip-gradients": Entry(
            "Clip the global gradient norm at {clip:g}",
            "One large gradient then can't throw the weights far from where they were.",
            "Explosions become bounded steps; a cause that persists will show as clipping on every step.",
            "Clipping bounds the damage and leaves the cause; log the norm before clipping.",
            (Plan("gradient_clipping", Slot("clip")),),
            defaults=Frozen({"clip": 1.0}),
        ),
        "loosen-clip": Entry(
            "Raise the clipping threshold to {clip:g}, about twice the usual norm",
            "A threshold below the usual norm shrinks every step and acts as a lower learning rate.",
            "Only outliers are clipped, and the learning rate means what it says.",
            "Not if the norm itself is rising: then find out why first.",
            (Plan("gradient_clipping", Slot("clip"), 3.0),),
            "Raise the clipping threshold to about twice the usual gradient norm",
        ),
        "unscale-before-clip": Entry(
            "Unscale the gradients before clipping them",
            "Clipping gradients that still carry the loss scale shrinks them by that scale.",
            "The gradient norm is logged in its true unit and steps regain their size.",
            "DeepSpeed, HF Trainer, Megatron and Lightning already do so: this is for hand-written loops.",
            _plans(gradient_clipping__after_unscale=True),
        ),
        "adaptive-clip": Entry(
            "Clip relative to the running gradient norm, at {z:g} standard deviations",
            "A fixed threshold is too loose late in a run, when norms are small.",
            "Fewer spikes at the same learning rate in published runs; not tested on yours.",
            "Start it after a few dozen steps, when mean and deviation are known.",
            (Plan("gradient_clipping.adaptive", Slot("z")),),
            defaults=Frozen({"z": 2.5}),
        ),
        # -- optimiser
        "lower-beta2": Entry(
            "Lower Adam's β2 to {beta2:g}",
            "A long memory of squared gradients is stale when gradients grow suddenly, and the step is then too large.",
            "Often fewer and shorter spikes; in at least one large run β2 alone did not help.",
            "A shorter memory is a noisier one: 0.98 may suit small batches better.",
            (Plan("optimizer.beta2", Slot("beta2")),),
            defaults=Frozen({"beta2": 0.95}),
        ),
        "stable-adamw": Entry(
            "Use an optimiser that bounds each tensor's update (StableAdamW, Adafactor's update clipping)",
            "It scales a step down when the second moment underestimates the gradient.",
            "It removed spikes where gradient clipping did not, in published vision-language runs.",
            "Not available in every framework.",
            _plans(optimizer__name="stable-adamw"),
        ),
        "adam-eps": Entry(
            "Set Adam's ε to {eps:g}",
            "ε must be far below the gradients' RMS, yet representable in the number format of the states.",
            "Gradient norms settle sooner when ε was too large; no division by zero when it was too small.",
            "1e-8 for fp32 states, 1e-6 for fp16 or 8-bit ones; smaller only when the RMS is far below 1e-8.",
            (Plan("optimizer.eps", Slot("eps")),),
            defaults=Frozen({"eps": 1e-8}),
        ),
        "lower-momentum": Entry(
            "Lower the momentum to {momentum:g}",
            "Momentum near 1 rings: the step overshoots for about 1/(1-momentum) steps.",
            "The oscillation should be damped within a few of its periods.",
            "This is for SGD; for Adam see lower-beta1.",
            (Plan("optimizer.momentum", Slot("momentum")),),
            defaults=Frozen({"momentum": 0.9}),
        ),
        "lower-beta1": Entry(
            "Lower Adam's β1 to {beta1:g}",
            "A long average of gradients overshoots for about 1/(1-β1) steps.",
            "The oscillation should be damped within a few of its periods.",
            "",
            (Plan("optimizer.beta1", Slot("beta1")),),
            defaults=Frozen({"beta1": 0.9}),
        ),
        "restore-full-state": Entry(
            "Save and restore the optimiser state, schedule, loss scaler, RNG and data position with the weights",
            "What is not restored starts anew and shows as a bump, a jump of the rate, or repeated data.",
            "The loss goes on where it stopped.",
            "Some flags are silently ignored: compare the first learning rate and loss after a resume with the last before it.",
            _plans(optimizer__restore_state=True),
        ),
        "decay-groups": Entry(
            "Decay matrices only: exempt embeddings, norms and biases",
            "Decay on embeddings shrinks them, which raises early-layer gradients.",
            "Slow growth of the gradient norm may stop; one published run lost nearly half of its spikes.",
            "",
            (Plan("optimizer.decay_groups", "matrices-only"), Plan("optimizer.weight_decay", Slot("weight_decay"))),
            defaults=Frozen({"weight_decay": 0.1}),
        ),
        # -- model
        "pre-norm": Entry(
            "Normalise inside the residual branch, x + F(LN(x)) (Pre-LN), or scale the residual as DeepNorm does",
            "With the normalisation after the sum (Post-LN) each layer rescales the path to the input; the gradient changes with depth.",
            "Gradients of comparable size in all layers, and less need of warm-up.",
            "It changes the model: a pre-trained Post-LN checkpoint does not carry over.",
            _plans(model__norm_position="pre"),
        ),
        "residual-path": Entry(
            "Give every block a skip path, x + F(x)",
            "Without it the gradient is a product of all layers' Jacobians and shrinks or grows with depth.",
            "Comparable gradients from the first layer to the last.",
            "Look at the wiring first: a skip path may be there and be overwritten.",
            _plans(model__residual=True),
        ),
        "init-scale": Entry(
            "Initialise weights with a standard deviation of {std:g}, and residual outputs smaller by √(2·layers)",
            "The scale of the first activations sets the scale of all early gradients.",
            "At large width this was decisive in one published run; the direction depends on the width.",
            "A usual range is √(1/(3·hidden)) to √(2/(5·hidden)); 0.02 suits widths near 1 000.",
            (Plan("model.init", Slot("std")),),
            defaults=Frozen({"std": 0.02}),
        ),
        "qk-norm": Entry(
            "Normalise queries and keys per head",
            "Attention logits that grow without bound make the softmax one-hot.",
            "Higher learning rates stay stable; published runs report a cost of up to a tenth of the throughput.",
            "It changes the model.",
            _plans(model__qk_norm=True),
        ),
        "z-loss": Entry(
            "Add {z:g}·(log Z)² of the output logits to the loss",
            "It keeps the logits' common level from drifting away.",
            "It is aimed at late divergence; several large runs use it.",
            "Check a fused implementation's backward against the plain one.",
            (Plan("loss.z", Slot("z")),),
            defaults=Frozen({"z": 1e-4}),
        ),
        "embedding-shrink": Entry(
            "Let {share:g} of the embedding's gradient through",
            "Early explosions often start in the embedding.",
            "It steadied one published 130-billion-parameter run; relaxing it brought the spikes back there.",
            "",
            (Plan("model.embedding_grad_scale", Slot("share")),),
            defaults=Frozen({"share": 0.1}),
        ),
        "unfreeze-layers": Entry(
            "Train the layers that get no update, and build the optimiser after unfreezing them",
            "A frozen or forgotten parameter has a gradient of exactly zero.",
            "Their gradient norms become non-zero.",
            "Not if they are frozen on purpose (adapters, LoRA).",
            _plans(train__unfreeze="all"),
        ),
        "change-activation": Entry(
            "Replace the saturating activation with {activation}",
            "Sigmoid and tanh have slopes near zero away from the origin; a dead ReLU has none.",
            "Larger gradients in the early layers.",
            "It changes the model: retrain, with the matching initialisation.",
            (Plan("model.activation", Slot("activation")),),
            defaults=Frozen({"activation": "gelu"}),
        ),
        "gated-cell": Entry(
            "Use a gated cell ({cell}) in place of the plain recurrent one",
            "A plain recurrent cell multiplies the gradient by the same matrix at every time step, so it grows or shrinks exponentially.",
            "Gradients survive more time steps.",
            "It changes the model: retrain.",
            (Plan("model.rnn_cell", Slot("cell")),),
            defaults=Frozen({"cell": "LSTM"}),
        ),
        # -- batch and data
        "larger-batch": Entry(
            "Raise the global batch to about {batch}",
            "Most of each step is noise when the batch is far below the noise scale.",
            "Steadier steps; fewer of them for the same loss, at about the same number of samples until the batch nears the noise scale.",
            "With Adam scale the learning rate by about the square root of the factor.",
            (Plan("batch.global", Slot("batch"), 2.0),),
            "Double the global batch",
        ),
        "batch-ramp": Entry(
            "Let the batch grow to its full size over {steps} steps",
            "The useful batch is small at first and grows as the loss falls.",
            "Fewer samples wasted early; published runs report savings between a fifth and two fifths of steps or time.",
            "",
            (Plan("batch.ramp", Slot("steps")),),
            defaults=Frozen({"steps": 2000}),
        ),
        "roll-back-and-skip": Entry(
            "Go back to the last checkpoint at or before step {step} and skip the next {batches} batches",
            "The weights or the optimiser state are already damaged when the loss shows it.",
            "Often the spike does not recur there; in some published runs it only moved.",
            "Never replay unchanged after a divergence: change one more thing.",
            (Plan("train.rollback_step", Slot("step")), Plan("data.skip_steps", Slot("batches"))),
            "Go back to a checkpoint well before the onset and skip {batches} batches",
            Frozen({"batches": 200}),
        ),
        "check-data": Entry(
            "Look at the batches around step {step}: inputs, labels, and each sample's loss",
            "A bad batch, a new shard or wrong labels show there and nowhere else.",
            "Either a culprit or the certainty that the data is fine.",
            "If the spike does not recur on the same batch, it was not the batch alone.",
            (Plan("data.check", Slot("step")),),
            "Look at the batches around the onset: inputs, labels, and each sample's loss",
            safe=True,
        ),
        "guard-empty-labels": Entry(
            "Leave batches without a single label out of the loss",
            "The mean over no label is 0/0.",
            "No more isolated zero or NaN losses.",
            "Find out why labels vanish: truncation, a template mismatch, or a wrong padding mask.",
            _plans(data__check_labels=True),
            safe=True,
        ),
        "filter-repeats": Entry(
            "Drop documents with {repeats} or more repeats of a short n-gram, and mask such spans in the loss",
            "Long repetitions are over-represented in batches that spike.",
            "Clearly fewer gradient spikes in one published run, not none; no effect on slow growth.",
            "",
            (Plan("data.repeats", Slot("repeats")),),
            defaults=Frozen({"repeats": 32}),
        ),
        "mix-data": Entry(
            "Fade the new data in over {steps} steps, and warm the learning rate up again",
            "An abrupt change of the mixture is an abrupt change of the objective.",
            "A slope in place of a jump; one published run needed both the ramp and the re-warming.",
            "",
            (Plan("data.mix_steps", Slot("steps")),),
            defaults=Frozen({"steps": 2000}),
        ),
        "shuffle-data": Entry(
            "Shuffle the data anew in every epoch",
            "A fixed order makes the loss repeat with the data.",
            "The oscillation at the period of the data disappears; a mild saw-tooth at epoch starts may stay.",
            "With a distributed sampler call set_epoch, or every epoch has the same order.",
            _plans(data__shuffle=True),
            safe=True,
        ),
        "shard-sampler": Entry(
            "Give each rank its own part of the data",
            "Micro-batches that are alike have gradients that are alike: the batch is smaller than it says.",
            "A noise scale above zero, and the effective batch that the configuration promises.",
            "Check the seed per rank too.",
            _plans(data__shard=True),
        ),
        "regularize": Entry(
            "Regularise more: dropout {dropout:g}, weight decay {weight_decay:g}, fewer epochs or more data",
            "The gap between training and evaluation grows.",
            "A smaller gap, at some cost in training loss.",
            "",
            (Plan("regularize.dropout", Slot("dropout")), Plan("optimizer.weight_decay", Slot("weight_decay"))),
            defaults=Frozen({"dropout": 0.1, "weight_decay": 0.1}),
        ),
        "fix-step-offset": Entry(
            "Resume the step counter at {step}",
            "Steps that go back make two attempts overlap in every chart, and shift what depends on the step.",
            "One continuous axis.",
            "",
            (Plan("train.step_offset", Slot("step")),),
            "Resume the step counter from the checkpoint",
            safe=True,
        ),
        # -- precision
        "bf16": Entry(
            "Train in bf16 in place of fp16",
            "bf16 has the range of fp32, so gradients neither overflow at 65 504 nor need a loss scale.",
            "No more overflow skips.",
            "It has fewer digits: keep fp32 master weights. A true divergence stays one.",
            _plans(precision="bf16"),
        ),
        "dynamic-loss-scale": Entry(
            "Use dynamic loss scaling that starts at {initial}, doubles after {window} good steps, and may fall to {minimum}",
            "A fixed scale overflows when gradients grow and flushes them to zero when they shrink.",
            "A few skipped steps at the start while the scale settles, then about one per window.",
            "When gradients really explode the scale only falls with them.",
            (
                Plan("loss_scale.dynamic", True),
                Plan("loss_scale.initial", Slot("initial")),
                Plan("loss_scale.window", Slot("window")),
                Plan("loss_scale.minimum", Slot("minimum")),
                Plan("loss_scale.hysteresis", Slot("hysteresis")),
            ),
            defaults=Frozen({"initial": 65536, "window": 1000, "minimum": 1, "hysteresis": 2}),
        ),
        "fp32-reduce": Entry(
            "Sum gradients across ranks and micro-batches in fp32",
            "Small summands are lost when many are added in 16 bits.",
            "It is among the stabilisers of published large runs; its share alone is not known.",
            "More communication volume.",
            _plans(precision__reduce="fp32"),
        ),
        "fp32-master": Entry(
            "Keep fp32 master weights",
            "bf16 rounds an update below about 1/500 of the weight to nothing.",
            "The loss goes on falling where it stood still as the rate decayed.",
            "Four more bytes per parameter.",
            _plans(precision__master="fp32"),
        ),
        "locate-nan": Entry(
            "Replay from the last good checkpoint before step {step} with anomaly detection on",
            "The first operation that turns non-finite names the cause; everything after it is a consequence.",
            "The name of a module, or a clean replay, which points at hardware.",
            "Slow: for a few steps only.",
            (Plan("debug.locate_nan", True),),
            "Replay from the last good checkpoint with anomaly detection on",
            safe=True,
        ),
        # -- throughput, memory, hardware
        "overlap-comm": Entry(
            "Reduce gradients while the backward pass runs",
            "Communication that waits for the end of backward is time without compute.",
            "Shorter steps when communication is exposed.",
            "Needs more memory for buckets. It does not change the numbers.",
            _plans(comm__overlap=True),
        ),
        "nccl-network": Entry(
            "Put NCCL on the fast network: unset NCCL_IB_DISABLE and exclude docker and loopback interfaces",
            "Sockets are many times slower than InfiniBand or RoCE between nodes.",
            "`Using network IB` in the log, and shorter steps.",
            "Cloud plug-ins show under other names and are fine.",
            (Plan("env.NCCL_DEBUG", "INFO"), Plan("env.NCCL_IB_DISABLE", 0), Plan("env.NCCL_SOCKET_IFNAME", "^docker0,lo")),
        ),
        "less-memory": Entry(
            "Use less memory: halve the micro-batch and double the accumulation, recompute activations",
            "Memory pressure costs retries, then the run.",
            "The same effective batch in less memory, somewhat slower.",
            "Sharding (ZeRO 2 or 3) also frees memory; it is numerically neutral.",
            (
                Plan("batch.micro", Slot("micro"), 0.5),
                Plan("batch.accumulation", Slot("accumulation"), 2.0),
                Plan("memory.recompute", True),
                Plan("env.PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),
            ),
        ),
        "async-checkpoint": Entry(
            "Write checkpoints in the background",
            "Training waits while a checkpoint is written.",
            "The periodic slow steps shrink to the time of a copy.",
            "Choose the interval from what a lost hour costs: √(2 · write time · time between failures).",
            _plans(checkpoint__async=True),
        ),
        "profile-step": Entry(
            "Profile a few slow steps: the wait for the data loader, communication, and the clocks of each device",
            "A slower step has several causes that look the same in a log of step times.",
            "One of the parts has grown; the others are ruled out.",
            "Rule out a larger batch, longer sequences and added evaluation first.",
            safe=True,
        ),
        "tune-loader": Entry(
            "Load data with {workers} persistent workers, tokenised beforehand, from local disk",
            "The accelerator waits for the loader.",
            "A data time near zero.",
            "Too many workers exhaust host memory.",
            (Plan("loader.workers", Slot("workers")),),
            defaults=Frozen({"workers": 8}),
            safe=True,
        ),
        "check-hardware": Entry(
            "Find the slow or failing device: compare step times per rank, run health checks, and leave one node out at a time",
            "One slow device holds back all of them.",
            "The step time goes back when the device is replaced.",
            "Rule out a larger batch, longer sequences and added evaluation first.",
            safe=True,
        ),
        "free-disk": Entry(
            "Free the disk or the quota, and keep fewer checkpoints",
            "A checkpoint that can't be written ends the run, or is cut and can't be read.",
            "The next save succeeds; look at the last one before you resume from it.",
            "Temporary files and caches (datasets, compiled kernels) count too.",
            safe=True,
        ),
        "more-host-memory": Entry(
            "Give the job more host memory, or use fewer loader workers and less pinned memory",
            "The kernel killed a process of the job for its memory, not the accelerator's.",
            "The job's resident memory stays below its limit.",
            "Memory that grows by the hour is a leak in the loader: more memory only delays it.",
            (Plan("loader.workers", Slot("workers"), 0.5),),
            safe=True,
        ),
        "resume-longer": Entry(
            "Ask for more time, or save before the limit and resume",
            "The scheduler ended the job; nothing broke in the training.",
            "The run goes on from its last checkpoint.",
            "`--signal=B:USR1@300` gives Slurm jobs five minutes' notice.",
            safe=True,
        ),
        "find-hung-rank": Entry(
            "Find the rank that stopped: compare the last collective of each rank, and turn the flight recorder on",
            "A collective waits for every rank; the ranks that report the timeout are the ones that waited.",
            "One rank with a lower sequence number, or none at all: look at its log and its node.",
            "A longer timeout hides a deadlock. It helps only where one rank is slow for a known reason.",
            _plans(env__TORCH_NCCL_TRACE_BUFFER_SIZE=2000, env__TORCH_NCCL_DUMP_ON_TIMEOUT=1),
        ),
        "debug-error": Entry(
            "Run the failing step alone, synchronously, and look at the line that the error names",
            "Errors of the accelerator are reported late, at a line that is often innocent.",
            "The error at its true place, with the shapes that caused it.",
            "CUDA_LAUNCH_BLOCKING=1 is slow: for a few steps only.",
            _plans(env__CUDA_LAUNCH_BLOCKING=1),
            safe=True,
        ),
        # -- logging
        "log-more": Entry(
            "Log loss, learning rate and the gradient norm before clipping at every step",
            "What is not logged can't be judged, and a spike shorter than the logging interval is invisible.",
            "A sharper onset and surer causes next time.",
            "",
            safe=True,
        ),
        "do-nothing": Entry("Leave it as it is", "This is what a healthy run does here.", "It passes by itself.", "", safe=True),
    }
)

# other names for the same fix# other names for the same fix
ALSO: Mapping[str, str] = MappingProxyType(
    {
        "rollback-and-skip": "roll-back-and-skip",
        "raise-batch": "larger-batch",
        "longer-warmup": "add-warmup",
        "use-bf16": "bf16",
        "no-action": "do-nothing",
        "find-nan-source": "locate-nan",
        "mask-guard": "guard-empty-labels",
        "add-residual": "residual-path",
        "fix-init": "init-scale",
    }
)
