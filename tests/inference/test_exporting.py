"""An exported file says what the Predictor says: at every size, with either head and a density."""

import json
import math
import os
import re
import zipfile

import pytest
import torch

import gmmseg
from gmmseg.inference import ExportedPredictor, ExportError, Predictor, export, open_exported
from gmmseg.inference.export_graph import symbolic_sides, traced_sides
from gmmseg.inference.export_metadata import ExportedFileError
from gmmseg.inference.exporting import (
    FORMATS,
    Format,
    compare,
    example_images,
    refuse_unsupported,
    smallest_side,
)
from gmmseg.inference.file_prediction import ImageNotPredicted
from gmmseg.inference.windows import fitting
from gmmseg.models import Calibration, InferenceSettings
from gmmseg.models.calibration_file import FUSED, PIXELS, ScoreMoments, Threshold
from gmmseg.models.density import CellDensity, DensitySettings
from gmmseg.models.saving import digest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

SIZES = [(64, 64), (40, 52), (33, 47), (7, 90), (131, 50)]


def tiny(preset="default", seed=0):
    """A tiny network that looks trained: features, means and variances that differ."""
    torch.manual_seed(seed)
    segmenter = gmmseg.build("tiny_unet", num_classes=4, preset=preset).eval()
    for module in segmenter.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            low = 0.1 if preset in ("paper", "softmax") else 0.01  # features there have no fixed length
            module.running_var.uniform_(low, 3 * low)  # random weights shrink what they see: undo it
    if segmenter.mixture is not None:
        means = segmenter.mixture.means.normal_()
        means.copy_(segmenter.mixture.coordinates.valid_means(means))
        segmenter.mixture.variances.uniform_(0.05, 0.5)
    segmenter.label_names = ("road", "sky", "tree", "car")
    return segmenter


def calibration(segmenter, threshold, **more):
    return Calibration(
        weights=digest(segmenter),
        thresholds={PIXELS: Threshold(threshold, 0.05)},
        temperature=1.7,
        typical=None,
        data=None,
        time=None,
        **more,
    )


@pytest.fixture(scope="module")
def with_density():
    """A network with a density beside its head, calibrated on the fused score."""
    segmenter = tiny()
    segmenter.density = CellDensity(4, DensitySettings(components=2, channels=16 + 32 + 64 + 96)).eval()
    segmenter.density.mixture.means.normal_(generator=torch.Generator().manual_seed(1))
    segmenter.density.mixture.variances[:3].uniform_(0.5, 2)
    moments = {"energy": ScoreMoments(-1.0, 2.0), "density": ScoreMoments(150.0, 40.0)}
    segmenter.calibration = calibration(segmenter, 0.0, score=FUSED, moments=moments)
    scores = Predictor(segmenter).predict(torch.rand(3, 64, 64, generator=torch.Generator().manual_seed(0)))
    threshold = round(float(scores.anomaly.median()), 2)
    segmenter.calibration = calibration(segmenter, threshold, score=FUSED, moments=moments)
    return segmenter


@pytest.fixture(scope="module")
def file(with_density, tmp_path_factory):
    path = tmp_path_factory.mktemp("exported") / "model.onnx"
    export(with_density, path, posterior=True)
    return path


def agrees(segmenter, exported, size, batch=1):
    """Every output against what a Predictor predicts of the same images."""
    images = torch.rand(batch, 3, *size, generator=torch.Generator().manual_seed(sum(size)))
    found = exported(images)
    predictor = Predictor(segmenter)
    known = predictor.calibration
    threshold = math.inf if known is None or known.threshold is None else known.threshold
    for index in range(batch):
        expected = predictor.predict(images[index])
        best, second = expected.posterior.topk(2, dim=0).values
        decided = best - second > 1e-4  # elsewhere rounding decides
        assert decided.float().mean() > 0.9
        assert torch.equal(found["labels"][index][decided], expected.labels[decided])
        torch.testing.assert_close(found["confidence"][index], expected.confidence, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found["anomaly"][index], expected.anomaly, rtol=1e-4, atol=1e-3)
        assert torch.equal(found["unknown"][index], found["anomaly"][index] > threshold)
        if "posterior" in found:
            torch.testing.assert_close(found["posterior"][index], expected.posterior, rtol=1e-4, atol=1e-5)
    return found


@pytest.mark.parametrize("size", SIZES)
def test_a_file_with_a_density_says_what_the_predictor_says(with_density, file, size):
    found = agrees(with_density, open_exported(file, threads=1), size)
    assert found["labels"].dtype == torch.uint8
    assert found["unknown"].dtype == torch.bool


def test_a_batch_is_its_images_one_by_one(with_density, file):
    agrees(with_density, open_exported(file, threads=1), (45, 70), batch=3)


def test_the_threshold_is_an_input_with_the_calibrated_value_as_default(with_density, file):
    exported = open_exported(file, threads=1)
    images = torch.rand(1, 3, 48, 64)
    default = exported(images)
    assert 0 < default["unknown"].float().mean() < 1
    assert torch.equal(default["unknown"], exported(images, with_density.calibration.threshold)["unknown"])
    middle = float(default["anomaly"].median())
    assert torch.equal(exported(images, middle)["unknown"], default["anomaly"] > middle)
    assert not exported(images, math.inf)["unknown"].any()


@pytest.mark.parametrize("preset", ["softmax", "paper", "reference"])
def test_every_head_is_exported_and_without_calibration_nothing_is_unknown(preset, tmp_path):
    segmenter = tiny(preset)
    report = export(segmenter, tmp_path / "model.onnx")
    assert report.labels_identical > 0.999
    assert report.bytes == (tmp_path / "model.onnx").stat().st_size
    exported = open_exported(tmp_path / "model.onnx", threads=1)
    found = agrees(segmenter, exported, (41, 66))
    assert "posterior" not in found
    assert exported.metadata.threshold is None
    assert not found["unknown"].any()


def test_metadata_travel_in_the_file(with_density, file):
    entries = {each.key: json.loads(each.value) for each in onnx.load(file).metadata_props}
    assert entries["gmmseg.classes"] == ["road", "sky", "tree", "car"]
    assert len(entries["gmmseg.colours"]) == 4
    assert entries["gmmseg.threshold"] == with_density.calibration.threshold
    assert entries["gmmseg.calibration"]["temperature"] == 1.7
    assert entries["gmmseg.calibration"]["score"] == FUSED
    assert entries["gmmseg.mean"] == [0.5, 0.5, 0.5]
    assert entries["gmmseg.version"] == gmmseg.__version__
    assert entries["gmmseg.short_side"] is None


def test_exporting_does_not_change_the_model(tmp_path):
    segmenter = tiny().train()
    before, weights = digest(segmenter), segmenter.features.up_to_8[0].weight
    export(segmenter, tmp_path / "model.onnx")
    assert digest(segmenter) == before
    assert segmenter.training
    assert weights.requires_grad
    assert segmenter.mixture is not None


def test_sides_are_those_of_the_predictor():
    for stride in (4, 7, 8, 14, 16, 32):
        for size in [(1, 1), (20, 200), (64, 64), (33, 47), (112, 140), (500, 31), (96, 100)]:
            assert tuple(map(int, traced_sides(*size, stride))) == fitting(size, stride)
            assert tuple(symbolic_sides(*size, stride)) == fitting(size, stride)


def test_a_file_that_disagrees_is_refused(file):
    with pytest.raises(ExportError, match="says something else than the model"):
        compare(tiny(seed=3), open_exported(file, threads=1), 0)


@pytest.mark.parametrize(
    "fault", [ExportError("another answer"), RuntimeError("another answer\nof a Concat")]
)
def test_a_file_that_disagrees_or_does_not_run_takes_no_place(tmp_path, monkeypatch, fault):
    def broken(segmenter, exported, smallest):
        raise fault

    monkeypatch.setattr("gmmseg.inference.exporting.compare", broken)
    monkeypatch.setitem(
        FORMATS, "onnx", Format(".onnx", lambda *given: given[-1].touch(), lambda *a, **b: None)
    )
    with pytest.raises(ExportError, match=r"^another answer$|\(another answer\); choose another format"):
        export(tiny(), tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())
    (tmp_path / "model.onnx").write_bytes(b"the good one")
    with pytest.raises(ExportError):
        export(tiny(), tmp_path / "model.onnx")
    assert [each.read_bytes() for each in tmp_path.iterdir()] == [b"the good one"]


def test_a_folder_in_the_place_of_a_file_is_told_before_the_work_begins(tmp_path):
    (tmp_path / "model.bin").mkdir()
    with pytest.raises(OSError, match=r"there is a folder of this name; .*model\.bin"):
        export(tiny(), tmp_path / "model.xml", format="openvino")


@pytest.mark.parametrize(
    ("entry", "value", "reason"),
    [
        ("classes", ["road"], "4 colours for 1 classes"),
        ("calibration", "of other classes", "was found on other classes"),
    ],
)
def test_metadata_that_contradict_each_other_are_refused(file, tmp_path, entry, value, reason):
    model = onnx.load(file)
    known = {each.key: json.loads(each.value) for each in model.metadata_props}
    if entry == "calibration":
        data = {"name": "x", "split": "val", "classes": ["a", "b", "c", "d"], "images": 3}
        value = {**known["gmmseg.calibration"], "data": data}
    known[f"gmmseg.{entry}"] = value
    onnx.helper.set_model_props(model, {key: json.dumps(each) for key, each in known.items()})
    onnx.save(model, tmp_path / "changed.onnx")
    with pytest.raises(ExportedFileError, match=reason):
        open_exported(tmp_path / "changed.onnx")


def test_a_graph_with_more_classes_than_its_metadata_name_is_refused(file, tmp_path):
    model = onnx.load(file)
    known = {each.key: each.value for each in model.metadata_props}
    few = {"gmmseg.classes": '["road"]', "gmmseg.colours": "[[1, 2, 3]]", "gmmseg.calibration": "null"}
    onnx.helper.set_model_props(model, {**known, **few})
    onnx.save(model, tmp_path / "few.onnx")
    predictor = ExportedPredictor(open_exported(tmp_path / "few.onnx"))
    with pytest.raises(ExportedFileError, match=r"gives class [123], its metadata name 1"):
        predictor.predict(torch.rand(3, 64, 64, generator=torch.Generator().manual_seed(0)))


def test_an_image_at_which_the_runtime_fails_is_told_apart_from_a_file_that_is_no_good(file, monkeypatch):
    predictor = ExportedPredictor(open_exported(file))
    image = torch.rand(3, 40, 64, generator=torch.Generator().manual_seed(0))
    alone = predictor.predict(image)

    class Fails:
        def run(self, names, given):
            if given["images"].shape[2] > 64:
                raise RuntimeError("Non-zero status code: no memory\nand where")
            return session.run(names, given)

    session = predictor.model.session
    monkeypatch.setattr(predictor.model, "session", Fails())
    with pytest.raises(
        ImageNotPredicted, match=r"failed at 64 x 80 pixels \(Non-zero status code: no memory\); "
    ):
        predictor.predict(torch.rand(3, 80, 64))
    assert torch.equal(predictor.predict(image).anomaly, alone.anomaly)
    object.__setattr__(predictor.metadata, "smallest_side", 50)
    with pytest.raises(ImageNotPredicted, match="sides of at least 50, got 64 x 40"):
        predictor.predict(image)


def test_a_threshold_that_is_no_number_is_refused_and_paths_may_be_text(file):
    predictor = ExportedPredictor(open_exported(str(file)))
    with pytest.raises(ValueError, match="a threshold is a finite number, got nan"):
        predictor.predict(torch.rand(3, 40, 64), math.nan)


def test_a_network_that_cannot_see_small_images_is_exported_with_its_smallest_side(tmp_path):
    segmenter = tiny()

    def refuse(module, images):
        if min(images[0].shape[-2:]) < 96:
            raise RuntimeError("Given input size: (1x1x1). Output size is too small")

    segmenter.features.register_forward_pre_hook(refuse)
    assert smallest_side(segmenter) == 128
    export(segmenter, tmp_path / "model.onnx")
    predictor = ExportedPredictor(open_exported(tmp_path / "model.onnx"))
    with pytest.raises(ImageNotPredicted, match="sides of at least 128, got 64 x 64"):
        predictor.predict(torch.rand(3, 64, 64))
    image = torch.rand(3, 150, 130, generator=torch.Generator().manual_seed(0))
    assert torch.equal(predictor.predict(image).labels, Predictor(segmenter).predict(image).labels)


def test_a_pyramid_of_smp_is_exported_for_every_size(tmp_path):
    import segmentation_models_pytorch as smp

    torch.manual_seed(0)
    segmenter = gmmseg.convert(smp.PSPNet("resnet18", encoder_weights=None, classes=4)).eval()
    segmenter.mixture.variances.uniform_(0.05, 0.2)
    assert export(segmenter, tmp_path / "model.onnx").labels_identical > 0.999
    exported = open_exported(tmp_path / "model.onnx", threads=1)
    for size in ((100, 108), (131, 70)):
        agrees(segmenter, exported, size)


def test_openvino_files_of_two_exports_are_told_apart(tmp_path):
    pytest.importorskip("openvino")
    for name, seed in (("one", 0), ("two", 1)):
        export(tiny(seed=seed), tmp_path / name / "m.xml", format="openvino")
    os.replace(tmp_path / "two/m.bin", tmp_path / "one/m.bin")
    with pytest.raises(ExportedFileError, match=r"one/m\.bin: not the weights that m\.xml was exported with"):
        open_exported(tmp_path / "one/m.xml")
    os.remove(tmp_path / "one/m.xml")
    with pytest.raises(ValueError, match=r"m\.bin: is there already, and no m\.xml that it belongs to"):
        export(tiny(), tmp_path / "one/m.xml", format="openvino")


def test_the_axis_of_classes_has_their_number(file):
    shapes = {each.name: each.type.tensor_type.shape for each in onnx.load(file).graph.output}
    assert shapes["posterior"].dim[1].dim_value == 4


def test_a_foreign_graph_under_our_metadata_is_refused(file, tmp_path):
    known = {each.key: each.value for each in onnx.load(file).metadata_props}
    kind = onnx.TensorProto.FLOAT
    names = [onnx.helper.make_tensor_value_info(name, kind, [1]) for name in ("x", "y")]
    node = onnx.helper.make_node("Identity", ["x"], ["y"])
    graph = onnx.helper.make_graph([node], "foreign", names[:1], names[1:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)
    onnx.helper.set_model_props(model, known)
    onnx.save(model, tmp_path / "foreign.onnx")
    with pytest.raises(ExportedFileError, match=r"foreign\.onnx: not a graph .* \(inputs x;"):
        open_exported(tmp_path / "foreign.onnx")


def test_what_cannot_be_exported_is_refused_before_the_work_begins(tmp_path):
    with pytest.raises(ExportError, match="never been fitted"):
        export(gmmseg.build("tiny_unet", num_classes=3), tmp_path / "model.onnx")
    with pytest.raises(ValueError, match="choose onnx, openvino, torch, aoti"):
        export(tiny(), tmp_path / "model.onnx", format="tflite")
    with pytest.raises(ValueError, match=re.escape("end in .onnx")):
        export(tiny(), tmp_path / "model.bin")
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, 2, 1), torch.nn.Conv2d(8, 4, 1))
    with pytest.raises(ExportError, match=r"weights are of torch\.bfloat16, .* export model\.float\(\)"):
        export(tiny().bfloat16(), tmp_path / "model.onnx")
    tapped = gmmseg.convert(network, classifier="1", preset="softmax")
    with pytest.raises(ExportError, match="taken apart at a layer"):
        refuse_unsupported(tapped)
    for format in ("torch", "aoti"):
        with pytest.raises(ExportError, match="choose onnx or openvino"):
            export(small_mask2former(), tmp_path / "model.pt2", format=format)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("format", ["torch", "aoti"])
def test_a_network_that_torch_has_no_graph_of_is_refused_with_the_reason(tmp_path, monkeypatch, format):
    def fails(*given, **more):
        raise AssertionError("a size became 7\nand much more")

    monkeypatch.setattr("torch.export.export", fails)
    with pytest.raises(ExportError, match=rf"in format {format} \(a size became 7\); .* \(onnx, openvino"):
        export(tiny(), tmp_path / "model.pt2", format=format)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("model.onnx", b"no protobuf"),
        ("model.xml", b"<nothing/>"),
        ("model.pt2", b"no archive"),
        ("model.bin", b""),
    ],
)
def test_a_file_that_is_no_exported_model_is_named(tmp_path, name, content):
    if name == "model.xml":
        pytest.importorskip("openvino")
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ExportedFileError, match=re.escape(str(path))):
        open_exported(path)
    with pytest.raises(FileNotFoundError, match="no such file"):
        open_exported(tmp_path / "absent.onnx")


def test_a_foreign_onnx_file_is_refused(tmp_path):
    path = tmp_path / "foreign.onnx"
    torch.onnx.export(torch.nn.ReLU(), (torch.zeros(1),), str(path), dynamo=False)
    with pytest.raises(ExportedFileError, match="not a model that gmmseg has exported"):
        open_exported(path)


def test_swin_windows_have_a_smallest_side():
    class Swin(torch.nn.Module):
        config = type("Config", (), {"window_size": 7})()

    segmenter = tiny()
    assert smallest_side(segmenter) == 0
    segmenter.features.add_module("swin", Swin())
    assert smallest_side(segmenter) == 256
    assert min(example_images(segmenter, 256).shape[-2:]) > 256


def small_timm(name):
    """A segmenter over a timm backbone that looks trained."""
    torch.manual_seed(0)
    segmenter = gmmseg.build(f"timm:{name}", num_classes=3).eval()
    segmenter.mixture.variances.uniform_(0.05, 0.2)
    return segmenter


def small_upernet():
    """A UPerNet over the smallest Swin, whose pyramid averages to 1, 2, 3 and 6 cells a side."""
    from gmmseg.models.heads import HeadSettings
    from gmmseg.models.huggingface import swin_config, swin_upernet
    from gmmseg.models.zoo import assemble

    torch.manual_seed(0)
    features = swin_upernet(swin_config(8, [1, 1, 1, 2], [1, 1, 2, 2], 2), None, channels=16)
    segmenter = assemble(features, 3, HeadSettings()).eval()
    segmenter.mixture.variances.uniform_(0.05, 0.2)
    return segmenter


def small_mask2former():
    """A Mask2Former over the same Swin, with ten queries."""
    from transformers import Mask2FormerConfig, Mask2FormerForUniversalSegmentation

    from gmmseg.models.heads import HeadSettings
    from gmmseg.models.huggingface import swin_config
    from gmmseg.models.masks import mask_segmenter

    torch.manual_seed(0)
    widths = ("feature_size", "mask_feature_size", "hidden_dim", "encoder_feedforward_dim", "dim_feedforward")
    layers = {"encoder_layers": 1, "decoder_layers": 2, "num_attention_heads": 2, "num_queries": 10}
    swin = swin_config(8, [1, 1, 1, 1], [1, 1, 2, 2], 2)
    config = Mask2FormerConfig(backbone_config=swin, **dict.fromkeys(widths, 32), **layers)
    config.num_labels = 3
    segmenter = mask_segmenter(Mask2FormerForUniversalSegmentation(config), 3, HeadSettings(), {}).eval()
    segmenter.mixture.variances.uniform_(0.05, 0.2)
    return segmenter


@pytest.mark.parametrize(
    ("make", "format"),
    [
        (small_upernet, "onnx"),
        pytest.param(small_upernet, "openvino", marks=pytest.mark.slow),
        (small_mask2former, "onnx"),
        pytest.param(small_mask2former, "openvino", marks=pytest.mark.slow),
    ],
)
def test_networks_over_a_swin_are_exported_for_every_size(tmp_path, make, format):
    if format == "openvino":
        pytest.importorskip("openvino")
    segmenter, path = make(), tmp_path / f"model{FORMATS[format].suffix}"
    report = export(segmenter, path, format=format)
    assert report.labels_identical > 0.999
    exported = open_exported(path, threads=1)
    for size in ((100, 108), (132, 140), (101, 197)):
        agrees(segmenter, exported, size)


@pytest.mark.slow
@pytest.mark.parametrize("make", [small_upernet, lambda: small_timm("tf_mobilenetv3_small_minimal_100")])
def test_torch_files_hold_pooling_to_cells_and_the_padding_of_tf_networks(tmp_path, make):
    segmenter, path = make(), tmp_path / "model.pt2"
    assert export(segmenter, path, format="torch").labels_identical == 1.0
    exported = open_exported(path)
    for size in ((100, 108), (132, 140), (101, 197)):
        agrees(segmenter, exported, size)


def test_openvino_says_what_the_predictor_says(with_density, tmp_path):
    pytest.importorskip("openvino")
    path = tmp_path / "model.xml"
    report = export(with_density, path, format="openvino", posterior=True)
    assert report.labels_identical == 1.0
    assert {each.name for each in tmp_path.iterdir()} == {"model.xml", "model.bin"}
    exported = open_exported(path, threads=1)
    assert exported.metadata.classes == ("road", "sky", "tree", "car")
    assert exported.metadata.calibration["score"] == FUSED
    for size in SIZES[1:4]:
        agrees(with_density, exported, size)
    images = torch.rand(1, 3, 48, 64)
    assert not exported(images, math.inf)["unknown"].any()


@pytest.mark.slow
@pytest.mark.parametrize("format", ["torch", "aoti"])
def test_files_of_torch_say_what_the_predictor_says(with_density, tmp_path, format):
    path = tmp_path / "model.pt2"
    report = export(with_density, path, format=format, posterior=True)
    assert report.labels_identical == 1.0
    exported = open_exported(path)
    assert isinstance(exported, FORMATS[format].open)
    assert exported.metadata.calibration["score"] == FUSED
    for size in SIZES:
        agrees(with_density, exported, size)
    images = torch.rand(2, 3, 48, 64)
    expected = exported(images, 3.0)
    for way in (images.contiguous(memory_format=torch.channels_last), images.mT.contiguous().mT):
        torch.testing.assert_close(exported(way, 3), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_a_compiled_file_refuses_what_it_would_misread(tmp_path):
    export(tiny(), tmp_path / "model.pt2", format="aoti")
    exported = open_exported(tmp_path / "model.pt2")
    for images in (torch.rand(1, 3, 48, 64).double(), torch.rand(1, 1, 48, 64), torch.rand(3, 48, 64)):
        with pytest.raises(ValueError, match=r"images \(b 3 h w\) of float32"):
            exported(images)


@pytest.mark.slow
def test_a_compiled_file_takes_as_many_threads_as_torch_may(tmp_path):
    before = torch.get_num_threads()
    torch.set_num_threads(os.cpu_count() + 1)  # of this number torch would make a constant
    try:
        export(tiny(), tmp_path / "model.pt2", format="aoti")
    finally:
        torch.set_num_threads(before)
    with zipfile.ZipFile(tmp_path / "model.pt2") as archive:
        sources = [archive.read(name).decode() for name in archive.namelist() if name.endswith(".cpp")]
    assert any("#pragma omp parallel" in source for source in sources)
    assert not any("num_threads(" in source for source in sources)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["segformer_mit_b0", "deeplabv3plus_efficientnet_lite0", "dinov3_vit_small"])
def test_larger_networks_say_what_the_predictor_says(tmp_path, name):
    torch.manual_seed(0)
    segmenter = gmmseg.build(name, num_classes=19).eval()
    segmenter.mixture.variances.uniform_(0.05, 0.2)
    export(segmenter, tmp_path / "model.onnx")
    for size in ((64, 96), (20, 200), (101, 77)):
        found = open_exported(tmp_path / "model.onnx")(torch.rand(1, 3, *size))
        assert found["labels"].shape == (1, *size)
    report = export(segmenter, tmp_path / "model.onnx")
    assert report.labels_identical > 0.999


def test_the_view_of_the_model_is_told(tmp_path):
    segmenter = tiny()
    segmenter.inference = InferenceSettings(short_side=48)
    export(segmenter, tmp_path / "model.onnx")
    assert open_exported(tmp_path / "model.onnx").metadata.inference == InferenceSettings(short_side=48)
