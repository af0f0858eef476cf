"""The index of exemplars: written and read, and what is broken or of other weights is refused."""

import json

import pytest
import torch
from safetensors.torch import save

from gmmseg.models.exemplars import EXEMPLARS_FILE, Exemplar, read_exemplars, write_exemplars
from gmmseg.models.weights import WeightsError

JPEG = b"\xff\xd8\xff\xe0picture"
SOME = (
    Exemplar(0, 1, "a.jpg", 3, 4, 0.5, JPEG),
    Exemplar(2, 0, "böse\n<b>.jpg", 0, 0, 1.5, JPEG + b"longer"),
)


def test_what_is_written_comes_back(tmp_path):
    assert read_exemplars(tmp_path, "w") is None
    for some in (SOME, ()):
        write_exemplars(some, "w", tmp_path)
        assert read_exemplars(tmp_path, "w") == some
    assert [path.name for path in tmp_path.iterdir()] == [EXEMPLARS_FILE]


def test_an_index_of_other_weights_is_refused(tmp_path):
    write_exemplars(SOME, "w", tmp_path)
    with pytest.raises(
        WeightsError, match=r"exemplars\.safetensors: belongs to other weights; write it again"
    ):
        read_exemplars(tmp_path, "other")


def index(**changes):
    entry = {"label": 0, "component": 0, "image": "a", "x": 0, "y": 0, "distance": 0.0, "crop": len(JPEG)}
    whole = {"library": "gmmseg", "format": 1, "weights": "w", "exemplars": [{**entry, **changes}]}
    return json.dumps(whole)


BROKEN = {
    "empty": b"",
    "text": b"hello",
    "cut": None,
    "no index": save({"crops": torch.zeros(4, dtype=torch.uint8)}),
    "no JSON": save({"crops": torch.zeros(4, dtype=torch.uint8)}, metadata={"exemplars": "{"}),
    "no pictures": save({"other": torch.zeros(4)}, metadata={"exemplars": index()}),
    **{
        name: save(
            {"crops": torch.tensor(list(JPEG), dtype=torch.uint8)}, metadata={"exemplars": index(**changes)}
        )
        for name, changes in {
            "too long": {"crop": 1000},
            "negative": {"crop": -3},
            "no JPEG": {"crop": 2},
            "no number": {"x": "1"},
            "below zero": {"y": -1},
            "not finite": {"distance": float("nan")},
            "unknown field": {"more": 1},
        }.items()
    },
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_index_is_refused_by_its_name(tmp_path, kind):
    write_exemplars(SOME, "w", tmp_path)
    path = tmp_path / EXEMPLARS_FILE
    content = BROKEN[kind]
    path.write_bytes(path.read_bytes()[:-8] if content is None else content)
    with pytest.raises(WeightsError, match=r"exemplars\.safetensors: .*write it again with `gmmseg explain"):
        read_exemplars(tmp_path, "w")
