"""A network and its teacher: the teacher says what it always says, and its pupil comes to say the same."""

import copy

import torch

import gmmseg
from gmmseg.labels import IGNORE
from gmmseg.training.teaching import Taught


def _pair() -> tuple[gmmseg.Segmenter, gmmseg.Segmenter]:
    torch.manual_seed(0)
    teacher = gmmseg.build("tiny_unet", num_classes=3, preset="softmax").eval()
    return copy.deepcopy(teacher), teacher


def test_the_teacher_stays_as_it_is_while_its_pupil_learns() -> None:
    pupil, teacher = _pair()
    images = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        expected = teacher(images).logits
    state = copy.deepcopy(teacher.state_dict())
    taught = Taught(pupil, teacher).train()
    assert pupil.training
    output = taught(images)
    assert torch.equal(output.teacher_logits, expected), "in evaluation mode, whatever the mode of its pupil"
    assert not output.teacher_logits.requires_grad
    pupil.losses(output, torch.zeros(2, 32, 32, dtype=torch.long))["teacher"].backward()
    assert any(each.grad is not None for each in pupil.parameters())
    assert all(each.grad is None for each in teacher.parameters())
    assert all(torch.equal(value, state[name]) for name, value in teacher.state_dict().items())


def test_terms_of_parts_weighed_by_their_labels_are_those_of_the_whole_batch() -> None:
    pupil, teacher = _pair()
    with torch.no_grad():
        pupil.head.classifier.weight.mul_(2)
    taught = Taught(pupil, teacher).eval()
    images, labels = torch.rand(2, 3, 32, 32), torch.zeros(2, 32, 32, dtype=torch.long)
    labels[0, 8:] = IGNORE
    together = pupil.losses(taught(images), labels)["teacher"]
    shares = [pupil.label_counts(each)["teacher"] for each in (labels, *labels.split(1))]
    parts = [
        pupil.losses(taught(image), own)["teacher"] * share / shares[0]
        for image, own, share in zip(images.split(1), labels.split(1), shares[1:])
    ]
    assert together > 0
    torch.testing.assert_close(sum(parts), together)


def test_without_a_teacher_there_is_no_such_term() -> None:
    pupil, _ = _pair()
    output = pupil(torch.rand(1, 3, 32, 32))
    assert output.teacher_logits is None
    assert "teacher" not in pupil.losses(output, torch.zeros(1, 32, 32, dtype=torch.long))
