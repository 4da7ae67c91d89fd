"""Canonical settings and how each framework spells them; `docs/settings.md` is the readable form of the table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from diagnose.model import Change, Frozen

FRAMEWORKS = ("pytorch", "deepspeed", "hf", "megatron", "lightning", "shell")


@dataclass(frozen=True, slots=True)
class Spelling:
    """One canonical setting: what it is, its unit, and a template per framework in which `{v}` is the value.

    A template may be a mapping from value to text. `hf` and `lightning` hold keyword arguments of `TrainingArguments` and
    `Trainer` (or code, in the `_code` fields), `deepspeed` a JSON fragment, `megatron` flags. Empty: the framework has no
    such switch, and the PyTorch line is what to do. `scaled` is the PyTorch line for a factor where the value is unknown.
    """

    says: str
    unit: str = ""
    pytorch: str | Mapping[Any, str] = ""
    deepspeed: str | Mapping[Any, str] = ""
    hf: str | Mapping[Any, str] = ""
    megatron: str | Mapping[Any, str] = ""
    lightning: str | Mapping[Any, str] = ""
    hf_code: str = ""
    lightning_code: str = ""
    shell: str | Mapping[Any, str] = ""
    scaled: str = ""


_GROUPS = "for group in optimizer.param_groups:\n    "
_RNN = "rnn = torch.nn.{v}(input_size, hidden_size, num_layers, batch_first=True)"
_RESUME = """\
state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict(),
         "scaler": scaler.state_dict(), "rng": torch.get_rng_state(), "step": step, "loader": loader.state_dict()}
torch.save(state, path)  # and load every entry on resume; `loader` needs torchdata's StatefulDataLoader"""
_AMP_ORDER = """\
scaler.scale(loss).backward()
scaler.unscale_(optimizer)  # first: the threshold must see true gradients
grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
scaler.step(optimizer)
scaler.update()"""
_DECAY_GROUPS = """\
plain = [p for n, p in model.named_parameters() if p.ndim < 2 or "embed" in n]  # norms, biases, embeddings
decayed = [p for n, p in model.named_parameters() if not (p.ndim < 2 or "embed" in n)]
optimizer = torch.optim.AdamW([{"params": decayed}, {"params": plain, "weight_decay": 0.0}], lr=lr)"""
_EARLY_STOP = """\
if eval_loss < best:
    best, waited = eval_loss, 0
else:
    waited += 1
stop = waited >= {v}"""
_ADAPTIVE = """\
norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
if norm > mean + {v} * std:  # running mean and std of the norm, decay 0.97, after 25 steps; one tensor for all layers
    torch.nn.utils.clip_grads_with_norm_(model.parameters(), mean + {v} * std, norm)
seen = min(norm.item(), mean + {v} * std)
mean, std = 0.97 * mean + 0.03 * seen, (0.97 * std**2 + 0.03 * (seen - mean) ** 2) ** 0.5"""
_SKIP = """\
for index, batch in enumerate(loader):
    if {first} <= index < {last}:
        continue  # the batches around the onset are not trained on again"""
_WARMUP = """\
warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.01, total_iters={v})
scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, main_schedule], milestones=[{v}])"""

_INIT = """\
for weight in (p for p in model.parameters() if p.ndim >= 2):
    torch.nn.init.normal_(weight, std={v})  # residual outputs: divide by (2 * layers) ** 0.5"""
_SHUFFLE = """\
loader = torch.utils.data.DataLoader(dataset, batch_size=batch_size, shuffle=True)
# with a DistributedSampler: sampler.set_epoch(epoch) at each epoch's start"""
_SHARD = """\
sampler = torch.utils.data.DistributedSampler(dataset, num_replicas=world_size, rank=rank)
loader = torch.utils.data.DataLoader(dataset, batch_size=batch_size, sampler=sampler)"""
_LABELS = """\
if (labels != -100).any():  # a mean over no label is 0/0
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=-100)"""

SETTINGS: Mapping[str, Spelling] = MappingProxyType(
    {
        "optimizer.name": Spelling(
            "the optimiser",
            "name",
            {"stable-adamw": "optimizer = optimi.StableAdamW(model.parameters(), lr=lr)  # package torch-optimi"},
            hf={"stable-adamw": 'optim="stable_adamw"'},
        ),
        "optimizer.lr": Spelling(
            "peak learning rate",
            "1/step",
            _GROUPS + 'group["lr"] = group["initial_lr"] = {v}  # before the scheduler is built',
            '{"optimizer": {"params": {"lr": {v}}}}',
            "learning_rate={v}",
            "--lr {v} --override-opt_param-scheduler",
            lightning_code="optimizer = torch.optim.AdamW(model.parameters(), lr={v})  # in configure_optimizers",
            scaled=_GROUPS + 'group["lr"] = group["initial_lr"] = {v} * group["lr"]  # before the scheduler is built',
        ),
        "optimizer.beta1": Spelling(
            "decay of Adam's first moment",
            "share",
            _GROUPS + 'group["betas"] = ({v}, group["betas"][1])',
            '{"optimizer": {"params": {"betas": [{v}, {beta2}]}}}',
            "adam_beta1={v}",
            "--adam-beta1 {v}",
        ),
        "optimizer.beta2": Spelling(
            "decay of Adam's second moment",
            "share",
            _GROUPS + 'group["betas"] = (group["betas"][0], {v})',
            '{"optimizer": {"params": {"betas": [{beta1}, {v}]}}}',
            "adam_beta2={v}",
            "--adam-beta2 {v}",
        ),
        "optimizer.eps": Spelling(
            "Adam's ε",
            "gradient RMS",
            _GROUPS + 'group["eps"] = {v}',
            '{"optimizer": {"params": {"eps": {v}}}}',
            "adam_epsilon={v}",
            "--adam-eps {v}",
        ),
        "optimizer.momentum": Spelling(
            "momentum of SGD",
            "share",
            _GROUPS + 'group["momentum"] = {v}',
            '{"optimizer": {"params": {"momentum": {v}}}}',
            megatron="--sgd-momentum {v}",
        ),
        "optimizer.weight_decay": Spelling(
            "weight decay",
            "1/step relative to lr",
            _GROUPS + 'group["weight_decay"] = {v}',
            '{"optimizer": {"params": {"weight_decay": {v}}}}',
            "weight_decay={v}",
            "--weight-decay {v}",
        ),
        "optimizer.decay_groups": Spelling("which parameters are decayed", "name", {"matrices-only": _DECAY_GROUPS}),
        "optimizer.restore_state": Spelling(
            "a resume restores optimiser, schedule, scaler, RNG and loader",
            "yes/no",
            {True: _RESUME},
            hf={True: "save_only_model=False, ignore_data_skip=False"},
            lightning_code="trainer.fit(model, ckpt_path=path)  # not load_from_checkpoint, which restores weights only",
        ),
        "schedule.kind": Spelling(
            "shape of the learning-rate schedule",
            "name",
            {"cosine": "scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=total_steps)"},
            hf="lr_scheduler_type={v}",
            megatron="--lr-decay-style {v}",
        ),
        "schedule.warmup_steps": Spelling(
            "length of the linear warm-up",
            "optimiser steps",
            _WARMUP,
            '{"scheduler": {"params": {"warmup_num_steps": {v}}}}',
            "warmup_steps={v}",
            "--lr-warmup-iters {v}",
            lightning_code=_WARMUP
            + '\nconfig = {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}  # return it',
        ),
        "schedule.total_steps": Spelling(
            "steps the schedule is planned for",
            "optimiser steps",
            "scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max={v})  # step() once per optimiser step",
            '{"scheduler": {"params": {"total_num_steps": {v}}}}',
            "max_steps={v}",
            "--lr-decay-iters {v}",
            "max_steps={v}",
        ),
        "schedule.min_lr": Spelling(
            "learning rate at the end of the schedule",
            "1/step",
            "scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=total_steps, eta_min={v})",
            '{"scheduler": {"type": "WarmupCosineLR", "params": {"cos_min_ratio": {min_ratio}}}}',
            'lr_scheduler_type="cosine_with_min_lr", lr_scheduler_kwargs={"min_lr": {v}}',
            "--min-lr {v}",
        ),
        "schedule.step_per": Spelling(
            "what advances the schedule",
            "name",
            {"optimizer-step": "optimizer.step()\nscheduler.step()  # once per optimiser step, not per micro-batch or epoch"},
            lightning_code='config = {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}  # return it',
        ),
        "gradient_clipping": Spelling(
            "largest global gradient norm; larger gradients are scaled down",
            "gradient norm",
            "grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), {v})  # after backward, before step",
            '{"gradient_clipping": {v}}',
            "max_grad_norm={v}",
            "--clip-grad {v}",
            "gradient_clip_val={v}",
            scaled="grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), {v} * max_norm)  # after backward, before step",
        ),
        "gradient_clipping.adaptive": Spelling(
            "clip what stands this many standard deviations above the running norm", "standard deviations", _ADAPTIVE
        ),
        "gradient_clipping.after_unscale": Spelling("gradients are unscaled before they are clipped", "yes/no", {True: _AMP_ORDER}),
        "precision": Spelling(
            "number format of compute",
            "fp32, fp16 or bf16",
            {
                "bf16": 'with torch.autocast("cuda", dtype=torch.bfloat16):\n    loss = model(**batch).loss  # no GradScaler',
                "fp16": 'with torch.autocast("cuda", dtype=torch.float16):\n    loss = model(**batch).loss  # with a GradScaler',
                "fp32": "loss = model(**batch).loss  # outside autocast",
            },
            {
                "bf16": '{"bf16": {"enabled": true}, "fp16": {"enabled": false}}',
                "fp16": '{"bf16": {"enabled": false}, "fp16": {"enabled": true}}',
                "fp32": '{"bf16": {"enabled": false}, "fp16": {"enabled": false}}',
            },
            {"bf16": "bf16=True, fp16=False", "fp16": "fp16=True, bf16=False", "fp32": "fp16=False, bf16=False"},
            {"bf16": "--bf16", "fp16": "--fp16"},
            {"bf16": 'precision="bf16-mixed"', "fp16": 'precision="16-mixed"', "fp32": 'precision="32-true"'},
        ),
        "precision.master": Spelling(
            "number format of the weights that the optimiser updates",
            "name",
            {"fp32": "model = model.float()  # fp32 weights; compute under autocast"},
            {"fp32": '{"bf16": {"enabled": true, "bf16_master_weights_and_grads": false}}'},
            hf_code="model = AutoModelForCausalLM.from_pretrained(name, torch_dtype=torch.float32)  # with bf16=True in TrainingArguments",
            lightning={"fp32": 'precision="bf16-mixed"'},
        ),
        "precision.reduce": Spelling(
            "number format in which gradients are summed",
            "name",
            {"fp32": "policy = torch.distributed.fsdp.MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)"},
            {"fp32": '{"communication_data_type": "fp32", "data_types": {"grad_accum_dtype": "fp32"}}'},
            megatron={"fp32": "--accumulate-allreduce-grads-in-fp32 --attention-softmax-in-fp32"},
        ),
        "loss_scale.dynamic": Spelling(
            "whether the fp16 loss scale adapts itself",
            "yes/no",
            {True: 'scaler = torch.amp.GradScaler("cuda")'},
            {True: '{"fp16": {"enabled": true, "loss_scale": 0}}'},
            {True: "fp16=True"},
            {True: "--fp16"},
            {True: 'precision="16-mixed"'},
        ),
        "loss_scale.initial": Spelling(
            "first loss scale",
            "factor",
            'scaler = torch.amp.GradScaler("cuda", init_scale={v})',
            '{"fp16": {"initial_scale_power": {power}}}',
            megatron="--initial-loss-scale {v}",
        ),
        "loss_scale.minimum": Spelling(
            "lowest loss scale", "factor", "", '{"fp16": {"min_loss_scale": {v}}}', megatron="--min-loss-scale {v}"
        ),
        "loss_scale.window": Spelling(
            "good steps before the loss scale doubles",
            "optimiser steps",
            'scaler = torch.amp.GradScaler("cuda", growth_interval={v})',
            '{"fp16": {"loss_scale_window": {v}}}',
            megatron="--loss-scale-window {v}",
        ),
        "loss_scale.hysteresis": Spelling(
            "overflows before the loss scale halves", "overflows", "", '{"fp16": {"hysteresis": {v}}}', megatron="--hysteresis {v}"
        ),
        "batch.global": Spelling(
            "samples per optimiser step, over all ranks",
            "samples",
            "accumulation = {v} // (micro_batch * world_size)",
            '{"train_batch_size": {v}}',
            hf_code="args.gradient_accumulation_steps = {v} // (args.per_device_train_batch_size * args.world_size)",
            megatron="--global-batch-size {v}",
            lightning_code="trainer = Trainer(accumulate_grad_batches={v} // (micro_batch * world_size))",
            scaled="accumulation = int({v} * accumulation)",
        ),
        "batch.accumulation": Spelling(
            "micro-batches per optimiser step",
            "micro-batches",
            "accumulation = {v}",
            '{"gradient_accumulation_steps": {v}}',
            "gradient_accumulation_steps={v}",
            lightning="accumulate_grad_batches={v}",
            scaled="accumulation = int({v} * accumulation)",
        ),
        "batch.micro": Spelling(
            "samples per rank in one forward pass",
            "samples",
            "loader = torch.utils.data.DataLoader(dataset, batch_size={v}, shuffle=True)",
            '{"train_micro_batch_size_per_gpu": {v}}',
            "per_device_train_batch_size={v}",
            "--micro-batch-size {v}",
            scaled="loader = torch.utils.data.DataLoader(dataset, batch_size=max(1, int({v} * micro_batch)), shuffle=True)",
        ),
        "batch.ramp": Spelling(
            "steps over which the batch grows to its full size",
            "optimiser steps",
            "accumulation = max(1, round(full_accumulation * min(1, step / {v})))",
            hf_code="",
            megatron="--rampup-batch-size 16 16 $RAMP_SAMPLES",
        ),
        "model.norm_position": Spelling(
            "where the normalisation sits in a block",
            "pre or post",
            {
                "pre": "layer = torch.nn.TransformerEncoderLayer(d_model, heads, norm_first=True)  # x + F(LN(x))",
                "post": "layer = torch.nn.TransformerEncoderLayer(d_model, heads, norm_first=False)  # LN(x + F(x))",
            },
        ),
        "model.activation": Spelling(
            "activation function",
            "name",
            {
                "gelu": 'layer = torch.nn.TransformerEncoderLayer(d_model, heads, activation="gelu")',
                "relu": "activation = torch.nn.ReLU()",
                "leaky-relu": "activation = torch.nn.LeakyReLU(0.01)",
            },
        ),
        "model.init": Spelling(
            "standard deviation of initial weights",
            "weight",
            _INIT,
            hf_code="config.initializer_range = {v}",
            megatron="--init-method-std {v}",
        ),
        "model.residual": Spelling("every block has a skip path", "yes/no", {True: "x = x + block(norm(x))"}),
        "model.qk_norm": Spelling(
            "queries and keys are normalised per head",
            "yes/no",
            {True: "q, k = torch.nn.functional.rms_norm(q, q.shape[-1:]), torch.nn.functional.rms_norm(k, k.shape[-1:])"},
            megatron={True: "--qk-layernorm"},
        ),
        "model.layers": Spelling(
            "number of layers or blocks",
            "layers",
            "model = Model(layers={v})",
            hf_code="config.num_hidden_layers = {v}",
            megatron="--num-layers {v}",
        ),
        "model.rnn_cell": Spelling("recurrent cell", "LSTM or GRU", _RNN),
        "model.embedding_grad_scale": Spelling(
            "share of the embedding gradient that is kept", "share", "embedded = {v} * embedded + (1 - {v}) * embedded.detach()"
        ),
        "loss.z": Spelling(
            "weight of the squared log-partition in the loss",
            "factor",
            "loss = loss + {v} * torch.logsumexp(logits.float(), dim=-1).pow(2).mean()",
        ),
        "regularize.dropout": Spelling(
            "dropout probability",
            "share",
            "dropout = torch.nn.Dropout({v})",
            hf_code="config.hidden_dropout_prob = {v}",
            megatron="--hidden-dropout {v} --attention-dropout {v}",
        ),
        "train.unfreeze": Spelling(
            "which parameters are trained",
            "name",
            {"all": "for parameter in model.parameters():\n    parameter.requires_grad_(True)  # before the optimizer is built"},
        ),
        "train.stop_step": Spelling(
            "step to stop at", "optimiser steps", "", hf="max_steps={v}", megatron="--exit-interval {v}", lightning="max_steps={v}"
        ),
        "train.patience": Spelling(
            "evaluations without a better one before training stops",
            "evaluations",
            _EARLY_STOP,
            hf='load_best_model_at_end=True, metric_for_best_model="eval_loss"',
            lightning='callbacks=[EarlyStopping("val_loss", patience={v})]',
        ),
        "train.rollback_step": Spelling(
            "checkpoint to go back to: the last one at or before this step",
            "step",
            "path = max((p for p in checkpoints if p.step <= {v}), key=lambda p: p.step)",
            hf_code='trainer.train(resume_from_checkpoint="checkpoint-{v}")  # or the nearest before it',
            lightning_code='trainer.fit(model, ckpt_path="step={v}.ckpt")',
        ),
        "train.step_offset": Spelling("step at which a resumed run starts to count", "step", "step = {v}"),
        "data.skip_steps": Spelling(
            "optimiser steps whose batches are left out after the roll-back",
            "optimiser steps",
            _SKIP,
            megatron="--iterations-to-skip $(seq -s ' ' {first} {end})",
        ),
        "data.shuffle": Spelling(
            "the order is drawn anew each epoch",
            "yes/no",
            {True: _SHUFFLE},
        ),
        "data.shard": Spelling(
            "each rank reads its own part",
            "yes/no",
            {True: _SHARD},
        ),
        "data.check": Spelling(
            "step whose batch to look at", "step", "# batches around step {v}: print the inputs, the labels and each sample's loss"
        ),
        "data.check_labels": Spelling(
            "batches without a label are left out of the loss",
            "yes/no",
            {True: _LABELS},
        ),
        "data.repeats": Spelling(
            "n-gram repeats from which a document is dropped",
            "repeats",
            "documents = [d for d in documents if longest_repeat(d, max_n=13) < {v}]  # and mask such spans in the loss",
        ),
        "data.mix_steps": Spelling(
            "steps over which a new data mixture is faded in",
            "optimiser steps",
            "share = min(1.0, (step - switch_step) / {v})  # of the new mixture",
        ),
        "loader.workers": Spelling(
            "worker processes of the data loader",
            "processes",
            "loader = torch.utils.data.DataLoader(dataset, batch_size=batch_size, num_workers={v}, persistent_workers=True)",
            hf="dataloader_num_workers={v}, dataloader_persistent_workers=True",
            megatron="--num-workers {v}",
        ),
        "checkpoint.async": Spelling(
            "checkpoints are written in the background",
            "yes/no",
            {True: "torch.distributed.checkpoint.async_save(state, checkpoint_id=path)"},
            megatron={True: "--async-save"},
        ),
        "comm.overlap": Spelling(
            "gradients are reduced while backward runs",
            "yes/no",
            {True: "model = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=100, gradient_as_bucket_view=True)"},
            {True: '{"zero_optimization": {"overlap_comm": true}}'},
            megatron={True: "--overlap-grad-reduce"},
        ),
        "memory.recompute": Spelling(
            "activations are recomputed in backward",
            "yes/no",
            {True: "x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)"},
            hf={True: "gradient_checkpointing=True"},
            megatron={True: "--recompute-activations"},
        ),
        "debug.locate_nan": Spelling(
            "the operation that makes the first NaN is named",
            "yes/no",
            {True: "torch.autograd.set_detect_anomaly(True)  # on a replay from the last good checkpoint; slow"},
            {True: '{"bf16": {"check_grad_overflow": true}}'},
            {True: 'debug="underflow_overflow"'},
            {True: "--rerun-mode validate_results --check-for-large-grads"},
            {True: "detect_anomaly=True"},
        ),
        "env.NCCL_DEBUG": Spelling("how much NCCL prints", "level", shell="export NCCL_DEBUG={v}"),
        "env.TORCH_NCCL_TRACE_BUFFER_SIZE": Spelling(
            "how many collectives the flight recorder keeps", "a whole number", shell="export TORCH_NCCL_TRACE_BUFFER_SIZE={v}"
        ),
        "env.TORCH_NCCL_DUMP_ON_TIMEOUT": Spelling(
            "1 writes what the flight recorder holds at a timeout", "0 or 1", shell="export TORCH_NCCL_DUMP_ON_TIMEOUT={v}"
        ),
        "env.CUDA_LAUNCH_BLOCKING": Spelling(
            "1 reports errors of kernels at their own line", "0 or 1", shell="export CUDA_LAUNCH_BLOCKING={v}"
        ),
        "env.NCCL_IB_DISABLE": Spelling("1 keeps NCCL off InfiniBand; unset it", "0 or 1", shell="unset NCCL_IB_DISABLE"),
        "env.NCCL_SOCKET_IFNAME": Spelling("network interfaces NCCL may use", "pattern", shell="export NCCL_SOCKET_IFNAME={v}"),
        "env.PYTORCH_CUDA_ALLOC_CONF": Spelling(
            "how PyTorch's allocator lays out memory", "options", shell="export PYTORCH_CUDA_ALLOC_CONF={v}"
        ),
    }
)


def spell(changes: Iterable[Change], values: Mapping[str, Any] = Frozen()) -> dict[str, str]:
    """The changes in each framework's own words; a framework without any of these switches is left out."""
    wanted = [c for c in (_resolved(c) for c in changes) if c.setting in SETTINGS]
    context = {**values, **{c.setting.split(".", 1)[-1]: c.value for c in wanted if c.op == "set"}}
    made = {
        "pytorch": "\n".join(_one_scaler(_pieces(wanted, "pytorch", context))),
        "deepspeed": _json(_pieces(wanted, "deepspeed", context)),
        "hf": _call("TrainingArguments", _pieces(wanted, "hf", context), _pieces(wanted, "hf_code", context)),
        "megatron": " ".join(dict.fromkeys(_pieces(wanted, "megatron", context))),
        "lightning": _call("Trainer", _pieces(wanted, "lightning", context), _pieces(wanted, "lightning_code", context)),
        "shell": "\n".join(f"$ {line}" for line in _pieces(wanted, "shell", context)),
    }
    return {framework: text for framework, text in made.items() if text}


def _resolved(change: Change) -> Change:
    """A factor or summand as the new value where the present one is known."""
    value, now = change.value, change.now
    if change.op == "set" or not isinstance(now, (int, float)) or isinstance(now, bool):
        return change
    new = now * value if change.op == "scale" else now + value
    return Change(change.setting, "set", round(new) if isinstance(now, int) else new, now=now)


def _pieces(changes: Iterable[Change], column: str, context: Mapping[str, Any]) -> list[str]:
    found = []
    for change in changes:
        entry = SETTINGS[change.setting]
        if change.op == "set":
            template = getattr(entry, column)
            template = template if isinstance(template, str) else template.get(change.value, "")
        else:
            template = entry.scaled if column == "pytorch" and change.op == "scale" else ""
        text = _filled(template, change, context, column) if template else ""
        if text:
            found.append(text)
    return found


def _one_scaler(pieces: Iterable[str]) -> list[str]:
    """All arguments of the loss scaler in one call: a second one would replace the first."""
    head, kept, arguments = 'scaler = torch.amp.GradScaler("cuda"', [], []
    for piece in pieces:
        if piece.startswith(head):
            arguments.append(piece.removeprefix(head).removesuffix(")"))
        else:
            kept.append(piece)
    return [*([f"{head}{''.join(arguments)})"] if arguments else []), *kept]


def _filled(template: str, change: Change, context: Mapping[str, Any], column: str) -> str:
    """The template with its values; empty when one of them is not known or not a finite literal."""
    value = change.value
    literal = json.dumps if column == "deepspeed" else (lambda v: f"{v}" if column in ("megatron", "shell") else repr(v))
    quoted = f"{value}" if '"' in template and column.endswith("_code") else literal(value)
    if change.setting == "model.rnn_cell":
        quoted = str(value)
    needs: dict[str, Any] = {"beta1": context.get("beta1", 0.9), "beta2": context.get("beta2", 0.999)}
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if "{power}" in template:
        needs["power"] = max(0, int(value).bit_length() - 1) if number and value >= 1 else None
    if "{min_ratio}" in template:
        lr = context.get("lr")
        needs["min_ratio"] = value / lr if number and lr else None
    if "{first}" in template:
        first = context.get("step")
        last = None if first is None else first + int(value)
        needs |= {"first": first, "last": last, "end": None if last is None else last - 1}
    text = template.replace("{v}", quoted)
    for name, need in needs.items():
        if f"{{{name}}}" in text:
            if need is None:
                return ""
            text = text.replace(f"{{{name}}}", literal(need))
    return text


def _json(fragments: Iterable[str]) -> str:
    merged: dict[str, Any] = {}
    for fragment in fragments:
        _merge(merged, json.loads(fragment))
    return json.dumps(merged, indent=2) if merged else ""


def _merge(into: dict[str, Any], more: Mapping[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value


def _call(name: str, arguments: Iterable[str], code: Iterable[str]) -> str:
    inside = ", ".join(dict.fromkeys(arguments))
    return "\n".join([*([f"{name}({inside})"] if inside else []), *code])


# -- the readable form


def documented(entry: Spelling) -> str:
    """The table row of a setting, without its name: meaning, unit, and each framework's spelling on one line."""
    cells = [entry.says, entry.unit]
    for column in ("pytorch", "deepspeed", "hf", "megatron", "lightning"):
        template = getattr(entry, column) or getattr(entry, f"{column}_code", "")
        texts = [template] if isinstance(template, str) else list(template.values())
        cells.append(" · ".join(f"`{_one_line(t)}`" for t in texts if t))
    if entry.shell:
        cells[2] = f"`$ {entry.shell}`"
    return " | ".join(cells)


def _one_line(text: str) -> str:
    lines = [line.strip() for line in text.split("  #", maxsplit=1)[0].splitlines()]
    return (" ".join(lines[:2]) if lines[0].endswith(":") else lines[0] + (" …" if len(lines) > 1 else "")).replace("|", "\\|")


def page() -> str:
    """`docs/settings.md`; `python -c "from diagnose.remedies.spelling import page; print(page(), end='')" > docs/settings.md`."""
    rows = [f"| `{name}` | {documented(entry)} |" for name, entry in SETTINGS.items()]
    return "\n".join([*_HEAD.splitlines(), *rows, ""])


_HEAD = """\
# Canonical settings

Fixes name what they change in these words, whatever framework made the run, and rules read a run's configuration in them.
A change is `set` (the new value), `scale` (a factor) or `add` (a summand). `{v}` is the value; an empty cell means that the
framework has no such switch, and what PyTorch does is to be done by hand. `docs/settings.md` is made from the table in
`diagnose/remedies/spelling.py`, and a test compares the two.

Steps are optimiser steps: micro-batches of one accumulation count once. The batch counts samples over all ranks.

| setting | meaning | unit | PyTorch | DeepSpeed | HF TrainingArguments | Megatron | Lightning |
|---|---|---|---|---|---|---|---|"""
