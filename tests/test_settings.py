"""Settings as frameworks spell them, and their canonical names."""

from diagnose.model import Setting
from diagnose.settings import canonical


def found(**spelled):
    return {
        k: s.value
        for k, s in canonical([Setting(k, v, spelled=k) for k, v in {k.replace("__", "."): v for k, v in spelled.items()}.items()]).items()
    }


def test_a_deepspeed_config_is_understood():
    got = found(optimizer__params__lr=1e-4, optimizer__params__betas=[0.9, 0.999], fp16__enabled=True, fp16__loss_scale=0,
                fp16__initial_scale_power=16, gradient_clipping=1.0, zero_optimization__stage=2, train_batch_size=512)  # fmt: skip
    assert got["optimizer.lr"] == 1e-4 and got["optimizer.beta2"] == 0.999 and got["precision"] == "fp16"
    assert got["loss_scale.dynamic"] is True and got["loss_scale.initial"] == 65536 and got["zero.stage"] == 2


def test_hugging_face_arguments_are_understood():
    got = found(learning_rate="5e-05", adam_beta2=0.999, max_grad_norm=1.0, warmup_steps=0, bf16=True, optim="adamw_torch")
    assert got == {"optimizer.lr": 5e-5, "optimizer.beta2": 0.999, "gradient_clipping": 1.0, "schedule.warmup_steps": 0, "bf16": True,
                   "precision": "bf16", "optimizer.name": "adamw_torch"}  # fmt: skip


def test_auto_is_not_a_value():
    assert "optimizer.lr" not in found(optimizer__params__lr="auto")


def test_where_a_setting_was_read_is_kept():
    got = canonical([Setting("lr", 0.1, spelled="lr", where="ds_config.json:4")])
    assert got["optimizer.lr"].where == "ds_config.json:4" and got["optimizer.lr"].spelled == "lr"
