"""The files of a segmenter: exact, checked when read, readable by those who may read other files."""

import stat

import pytest
import torch
from safetensors.torch import load_file, save_file

import gmmseg
from gmmseg.models import WeightsError
from gmmseg.models.card import CARD_FILE
from gmmseg.models.saving import CONFIG_FILE, WEIGHTS_FILE, checksum


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(0)
    gmmseg.build("tiny_unet", num_classes=3).save_pretrained(tmp_path / "net")
    return tmp_path / "net"


def test_a_bit_that_flipped_in_the_weights_is_noticed(folder):
    path = folder / WEIGHTS_FILE
    content = path.read_bytes()
    values = 8 + int.from_bytes(content[:8], "little")
    for position in torch.linspace(values, len(content) - 1, 7).int().tolist():
        path.write_bytes(content[:position] + bytes([content[position] ^ 0b100]) + content[position + 1 :])
        with pytest.raises(WeightsError, match=r"model\.safetensors: damaged.*fetch or write it again"):
            gmmseg.from_pretrained(folder)
    path.write_bytes(content)
    gmmseg.from_pretrained(folder)


def test_weights_of_earlier_versions_have_no_checksum_and_load(folder):
    state = load_file(folder / WEIGHTS_FILE)
    save_file(state, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    loaded = gmmseg.from_pretrained(folder).state_dict()
    assert all(torch.equal(value, loaded[name]) for name, value in state.items())


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_weights_that_are_not_finite_are_refused_by_name(folder, value):
    model = gmmseg.from_pretrained(folder)
    name, weights = next(iter(model.named_parameters()))
    with torch.no_grad():
        weights.view(-1)[0] = value
    model.save_pretrained(folder)  # with a checksum that fits
    with pytest.raises(WeightsError, match=rf"model\.safetensors: 1 of its tensors .*{name}.*earlier step"):
        gmmseg.from_pretrained(folder)


def test_equal_weights_are_equal_files_and_nothing_else_stays(folder, tmp_path):
    gmmseg.from_pretrained(folder).save_pretrained(tmp_path / "again")
    assert (tmp_path / "again" / WEIGHTS_FILE).read_bytes() == (folder / WEIGHTS_FILE).read_bytes()
    assert {path.name for path in folder.iterdir()} == {WEIGHTS_FILE, CONFIG_FILE, CARD_FILE}


def test_others_may_read_weights_as_they_may_read_any_new_file(folder, tmp_path):
    usual = tmp_path / "usual"
    usual.write_bytes(b"x")
    for name in (WEIGHTS_FILE, CONFIG_FILE):
        assert stat.S_IMODE((folder / name).stat().st_mode) == stat.S_IMODE(usual.stat().st_mode), name


def test_the_checksum_tells_names_types_shapes_and_values_apart():
    ones = torch.ones(4)
    states = [
        {"a": ones},
        {"b": ones},
        {"a": ones.int()},
        {"a": ones.reshape(2, 2)},
        {"a": torch.tensor([1.0, 1.0, 1.0, 1.5])},
        {"a": ones, "b": torch.tensor(True)},
    ]
    assert len({checksum(state) for state in states}) == len(states)
    assert checksum({"b": ones, "a": -ones}) == checksum({"a": -ones, "b": ones})


def test_a_run_folder_is_told_where_its_weights_are(folder, tmp_path):
    folder.rename(tmp_path / "final")
    with pytest.raises(WeightsError, match=r"a run folder, its weights are in .*final$"):
        gmmseg.from_pretrained(tmp_path)
