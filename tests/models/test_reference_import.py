"""A checkpoint in the reference project's layout, against that layout's forward pass, step by step."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import gmmseg
from gmmseg.models import WeightsError, import_reference
from gmmseg.models.heads import HeadSettings

WIDTHS, DEPTHS, HEADS, REDUCTIONS = (8, 16, 40, 64), (1, 2, 1, 1), (1, 2, 5, 8), (8, 4, 2, 1)
CHANNELS, C, K, D = 12, 5, 3, 64
MEAN = torch.tensor([123.675, 116.28, 103.53]).view(3, 1, 1)
STD = torch.tensor([58.395, 57.12, 57.375]).view(3, 1, 1)


@pytest.fixture
def state(generator: torch.Generator) -> dict[str, Tensor]:
    """Random tensors under every name of the layout, those not needed included."""
    made: dict[str, Tensor] = {}

    def put(name: str, *shape: int, around: float = 0.0) -> None:
        fan_in = math.prod(shape[1:]) if len(shape) > 1 else 4
        made[name] = around + torch.randn(*shape, generator=generator) / fan_in**0.5

    def norm(name: str, width: int) -> None:
        put(f"{name}.weight", width, around=1.0)
        put(f"{name}.bias", width)

    def conv_bn(name: str, inputs: int, outputs: int) -> None:
        put(f"{name}.conv.weight", outputs, inputs, 1, 1)
        norm(f"{name}.bn", outputs)
        put(f"{name}.bn.running_mean", outputs)
        made[f"{name}.bn.running_var"] = 0.5 + torch.rand(outputs, generator=generator)
        made[f"{name}.bn.num_batches_tracked"] = torch.tensor(7)

    def layer(name: str, outputs: int, *rest: int) -> None:
        put(f"{name}.weight", outputs, *rest)
        put(f"{name}.bias", outputs)

    inputs = 3
    for s, width in enumerate(WIDTHS):
        stage, kernel = f"backbone.layers.{s}", 7 if s == 0 else 3
        layer(f"{stage}.0.projection", width, inputs, kernel, kernel)
        norm(f"{stage}.0.norm", width)
        for j in range(DEPTHS[s]):
            block = f"{stage}.1.{j}"
            norm(f"{block}.norm1", width)
            put(f"{block}.attn.attn.in_proj_weight", 3 * width, width)
            put(f"{block}.attn.attn.in_proj_bias", 3 * width)
            layer(f"{block}.attn.attn.out_proj", width, width)
            if REDUCTIONS[s] > 1:
                layer(f"{block}.attn.sr", width, width, REDUCTIONS[s], REDUCTIONS[s])
                norm(f"{block}.attn.norm", width)
            norm(f"{block}.norm2", width)
            layer(f"{block}.ffn.layers.0", 4 * width, width, 1, 1)
            layer(f"{block}.ffn.layers.1", 4 * width, 1, 3, 3)
            layer(f"{block}.ffn.layers.4", width, 4 * width, 1, 1)
        norm(f"{stage}.2", width)
        conv_bn(f"decode_head.convs.{s}", width, CHANNELS)
        inputs = width
    conv_bn("decode_head.fusion_conv", 4 * CHANNELS, CHANNELS)
    conv_bn("decode_head.projection", CHANNELS, D)
    norm("decode_head.feat_norm", D)
    norm("decode_head.mask_norm", C)
    put("decode_head.means", C, K, D)
    made["decode_head.diagonal"] = 0.3 + torch.rand(C, K, D, generator=generator)
    layer("decode_head.conv_seg", C, CHANNELS, 1, 1)
    made["decode_head.queue"] = torch.randn(C * K, D, 6, generator=generator)
    made["decode_head.queue_ptr"] = torch.zeros(C * K, dtype=torch.long)
    made["decode_head.iteration_counter"] = torch.zeros(1)
    made["decode_head.eye_matrix"] = torch.ones(K, D)
    return made


def forward_by_the_layout(state: dict[str, Tensor], images: Tensor) -> tuple[Tensor, Tensor]:
    """Class scores and raw evidences (b c h w) of images in [0, 1], as the layout defines them."""

    def layer_norm(x: Tensor, name: str, eps: float) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt()
        return scaled * state[f"{name}.weight"] + state[f"{name}.bias"]

    def conv(x: Tensor, name: str, stride: int = 1, padding: int = 0, groups: int = 1) -> Tensor:
        return F.conv2d(x, state[f"{name}.weight"], state.get(f"{name}.bias"), stride, padding, groups=groups)

    def conv_bn_relu(x: Tensor, name: str) -> Tensor:
        x = F.conv2d(x, state[f"{name}.conv.weight"])
        shape = (1, -1, 1, 1)
        mean, var = (state[f"{name}.bn.running_{which}"].view(shape) for which in ("mean", "var"))
        x = (x - mean) / (var + 1e-5).sqrt()
        return (x * state[f"{name}.bn.weight"].view(shape) + state[f"{name}.bn.bias"].view(shape)).relu()

    def tokens(maps: Tensor) -> Tensor:
        return maps.flatten(2).transpose(1, 2)

    def attention(x: Tensor, size: tuple[int, int], block: str, s: int) -> Tensor:
        context = x
        if REDUCTIONS[s] > 1:
            maps = x.transpose(1, 2).unflatten(2, size)
            context = tokens(conv(maps, f"{block}.attn.sr", stride=REDUCTIONS[s]))
            context = layer_norm(context, f"{block}.attn.norm", 1e-6)
        weights = state[f"{block}.attn.attn.in_proj_weight"].chunk(3)
        biases = state[f"{block}.attn.attn.in_proj_bias"].chunk(3)
        query, key, value = (
            (each @ weight.T + bias).unflatten(2, (HEADS[s], -1)).transpose(1, 2)
            for each, weight, bias in zip((x, context, context), weights, biases)
        )
        shares = (query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5).softmax(-1)
        joined = (shares @ value).transpose(1, 2).flatten(2)
        out = f"{block}.attn.attn.out_proj"
        return joined @ state[f"{out}.weight"].T + state[f"{out}.bias"]

    def feed_forward(x: Tensor, size: tuple[int, int], block: str) -> Tensor:
        maps = conv(x.transpose(1, 2).unflatten(2, size), f"{block}.ffn.layers.0")
        maps = conv(maps, f"{block}.ffn.layers.1", padding=1, groups=maps.shape[1])
        return tokens(conv(F.gelu(maps), f"{block}.ffn.layers.4"))

    maps = (images * 255 - MEAN) / STD
    stages = []
    for s in range(4):
        stage = f"backbone.layers.{s}"
        stride, padding = (4, 3) if s == 0 else (2, 1)
        maps = conv(maps, f"{stage}.0.projection", stride=stride, padding=padding)
        size = maps.shape[-2:]
        x = layer_norm(tokens(maps), f"{stage}.0.norm", 1e-6)
        for j in range(DEPTHS[s]):
            block = f"{stage}.1.{j}"
            x = x + attention(layer_norm(x, f"{block}.norm1", 1e-6), size, block, s)
            x = x + feed_forward(layer_norm(x, f"{block}.norm2", 1e-6), size, block)
        maps = layer_norm(x, f"{stage}.2", 1e-6).transpose(1, 2).unflatten(2, size)
        stages.append(maps)

    size = stages[0].shape[-2:]
    joined = [
        F.interpolate(
            conv_bn_relu(each, f"decode_head.convs.{s}"), size, mode="bilinear", align_corners=False
        )
        for s, each in enumerate(stages)
    ]
    features = conv_bn_relu(torch.cat(joined, dim=1), "decode_head.fusion_conv")
    points = conv_bn_relu(features, "decode_head.projection").permute(0, 2, 3, 1)
    points = F.normalize(layer_norm(points, "decode_head.feat_norm", 1e-5), dim=-1)
    means = F.normalize(state["decode_head.means"], dim=-1)
    stds = state["decode_head.diagonal"]
    difference = (points[..., None, None, :] - means) / stds
    log_densities = (-0.5 * difference.square() - stds.log() - 0.5 * math.log(2 * math.pi)).sum(-1)
    evidence = log_densities.amax(-1)
    scores = layer_norm(evidence, "decode_head.mask_norm", 1e-5)
    return scores.permute(0, 3, 1, 2), evidence.permute(0, 3, 1, 2)


@pytest.fixture
def checkpoint(state: dict[str, Tensor], tmp_path: Path) -> Path:
    meta = {"CLASSES": tuple("abcde"), "PALETTE": [[i, i, i] for i in range(C)], "epoch": 1}
    torch.save({"meta": meta, "state_dict": state, "optimizer": {"lr": 0.1}}, tmp_path / "iter_160000.pth")
    return tmp_path / "iter_160000.pth"


@pytest.mark.filterwarnings("error")
def test_scores_and_evidences_are_what_the_layout_defines(
    checkpoint: Path, state: dict[str, Tensor], generator: torch.Generator
) -> None:
    segmenter = import_reference(checkpoint)
    images = torch.rand(2, 3, 64, 96, generator=generator)
    scores, evidence = forward_by_the_layout(state, images)
    with torch.no_grad():
        output = segmenter(images)
    assert evidence.std() > 1, (
        "the random network must tell pixels and classes apart for this to mean anything"
    )
    torch.testing.assert_close(output.evidence, evidence, rtol=0, atol=1e-4)
    torch.testing.assert_close(output.logits, scores, rtol=0, atol=1e-4)


def test_it_becomes_one_of_ours(checkpoint: Path, tmp_path: Path) -> None:
    segmenter = import_reference(checkpoint)
    assert segmenter.label_names == ("a", "b", "c", "d", "e")
    assert segmenter.colours[3] == (3, 3, 3)
    assert (
        segmenter.recipe["head"]
        == HeadSettings("gmm", K, D, "reference", "sphere", "class_norm", winner=True).__dict__
    )
    assert not any("queue" in name or "counter" in name for name in segmenter.state_dict())
    segmenter.save_pretrained(tmp_path / "ours")
    images = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(gmmseg.from_pretrained(tmp_path / "ours")(images).logits, segmenter(images).logits)


def test_other_checkpoints_are_refused(state: dict[str, Tensor], tmp_path: Path) -> None:
    path = tmp_path / "w.pth"
    torch.save({"state_dict": {"conv1.weight": torch.zeros(3)}}, path)
    with pytest.raises(WeightsError, match=r"w\.pth: not a checkpoint of the reference project"):
        import_reference(path)
    torch.save({"state_dict": {k: v for k, v in state.items() if k != "backbone.layers.1.2.bias"}}, path)
    with pytest.raises(WeightsError, match=r"w\.pth does not fit SegformerModel.*layer_norm\.bias"):
        import_reference(path)
    del state["decode_head.mask_norm.weight"]
    torch.save({"state_dict": state}, path)
    with pytest.raises(WeightsError, match="mask_norm"):
        import_reference(path)


def test_entries_beyond_the_layout_are_named(state: dict[str, Tensor], tmp_path: Path) -> None:
    torch.save({"state_dict": {**state, "auxiliary_head.conv.weight": torch.zeros(3)}}, tmp_path / "w.pth")
    with pytest.warns(UserWarning, match=r"auxiliary_head\.conv\.weight"):
        import_reference(tmp_path / "w.pth")


class Bomb:
    def __reduce__(self):
        return (Path.touch, (Path("exploded"),))


def test_a_pickle_that_wants_to_run_code_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"state_dict": {}, "meta": Bomb()}, tmp_path / "evil.pth")
    with pytest.raises(WeightsError, match=r"evil\.pth: refused"):
        import_reference(tmp_path / "evil.pth")
    assert not (tmp_path / "exploded").exists()
