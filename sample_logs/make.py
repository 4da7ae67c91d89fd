"""Makes the sample logs: small real trainings on the CPU, logged by the real libraries (`pip install -e '.[samples]'`).

`python sample_logs/make.py [NAME ...]` makes all runs or the named ones, each in its own directory beside this file. Seeds
are fixed; the last digits depend on the machine and its libraries. Nothing is drawn by hand: every number is computed by a
training loop, faults come from settings or data (`README.md` says which), and no logged value is changed afterwards.
"""

from __future__ import annotations

import argparse
import os
import socket
import time
import warnings
from collections.abc import Callable
from functools import partial

for _key, _value in {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "WANDB_MODE": "offline", "WANDB_SILENT": "true"}.items():
    os.environ.setdefault(_key, _value)
socket.gethostname = lambda: "host"  # event files carry the host's name; a sample should not
warnings.filterwarnings("ignore")

import torch  # noqa: E402
from trainings import engine, plain, scaled  # noqa: E402
from trainings.writers import HERE  # noqa: E402

torch.set_num_threads(1)

RUNS: dict[str, Callable[[], None]] = {
    "healthy-gpt": plain.healthy_gpt,
    "healthy-wandb": plain.healthy_wandb,
    "lr-too-high-divergence": plain.lr_too_high_divergence,
    "rnn-explosion": plain.rnn_explosion,
    "bert-vanishing": plain.bert_vanishing,
    "oscillation-period": plain.oscillation_period,
    "gns-drift": plain.gns_drift,
    "gpt175b-like": scaled.gpt175b_like,
    **{name: partial(engine.engine_run, name) for name in ("fp16-overflow-collapse", "healthy-deepspeed", "throughput-regression")},
}


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
