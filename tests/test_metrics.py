"""Names in the wild and what they mean."""

import pytest

from diagnose import metrics


@pytest.mark.parametrize(
    ("tag", "group", "name"),
    [
        ("train/loss", "", "loss/train"),
        ("Loss/train", "", "loss/train"),
        ("lm-loss-training/lm loss", "", "loss/train"),
        ("Train/Samples/train_loss", "", "loss/train"),
        ("loss", "validation", "loss/eval"),
        ("loss", "train", "loss/train"),
        ("metrics/val/cross_entropy", "", "loss/eval"),
        ("grad-norm/grad-norm", "", "grad_norm"),
        ("grad_2.0_norm_total", "", "grad_norm"),
        ("optim/total grad norm", "", "grad_norm"),
        ("learning rate", "", "lr"),
        ("lr-AdamW", "", "lr"),
        ("loss scale", "", "loss_scale"),
        ("layers.h.3.grad_norm", "", "grad_norm/layer/layers.h.3"),
        ("gradients/norm/h.1", "", "grad_norm/layer/h.1"),
        ("grad_norm_h.2", "", "grad_norm/layer/h.2"),
        ("gradnorm/layers.0", "", "grad_norm/layer/layers.0"),
        ("grad_norm/layer_03", "", "grad_norm/layer/layer_03"),
        ("rank_3/train/loss", "", "loss/train"),
        ("my_own_thing", "", "my_own_thing"),
    ],
)
def test_a_known_tag_gets_its_canonical_name(tag, group, name):
    assert metrics.canonical(tag, group) == name


@pytest.mark.parametrize("tag", ["lm-loss-training/lm loss vs samples", "lr vs tokens", "loss__MIN", "a - loss__MAX"])
def test_the_same_series_on_another_axis_is_not_a_signal(tag):
    assert metrics.canonical(tag) == tag


@pytest.mark.parametrize("tag", ["grad_norm", "gradients/global_norm", "train/grad_norm_clipped", "grad_norm/max", "gradient_norm"])
def test_a_global_norm_is_no_layer(tag):
    assert metrics.layer_of(tag) is None


def test_every_alias_names_one_metric_only():
    seen = {}
    for entry in metrics.CATALOGUE.values():
        for alias in entry.aliases:
            assert seen.setdefault(metrics.normal(alias), entry.name) == entry.name, alias


def test_layers_are_ordered_from_input_to_output():
    layers = ["head", "h.10", "h.2", "embed", "h.0"]
    assert sorted(layers, key=metrics.depth_of) == ["embed", "h.0", "h.2", "h.10", "head"]
