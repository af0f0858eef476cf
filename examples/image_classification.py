"""The same head on images as a whole: a classifier of digits that knows when it is shown something else.

    python examples/image_classification.py

Classes 0 to 7 of scikit-learn's handwritten digits are learned; 8 and 9 are held out and play the unknown.
A small network makes one embedding (n f) of each image, the GMM head classifies it, and minus the evidence
of the best class says how strange it is. Prints the accuracy on known digits and the AUROC of unknown
against known.
"""

import torch
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from gmmseg.mixture import PRESETS, ClassMixture, OnlineEM, Sphere, anomaly_score
from gmmseg.models import GMMHead

KNOWN = 8


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images (n 1 8 8) in [0, 1] and labels: known ones to learn from, then everything else."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(data.target)
    learn = (labels < KNOWN) & (torch.arange(len(labels)) % 3 > 0)
    return images[learn], labels[learn], images[~learn], labels[~learn]


def encoder(channels: int = 64) -> nn.Module:
    """Images (n 1 8 8) -> embeddings (n f)."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, channels, 3, stride=2, padding=1),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        nn.Conv2d(channels, channels, 3, stride=2, padding=1),
        nn.Flatten(),
        nn.Linear(4 * channels, channels),
    )


def train(network: nn.Module, head: GMMHead, images: Tensor, labels: Tensor, epochs: int = 12) -> None:
    """Gradient moves the network, EM moves the mixtures, side by side."""
    optimizer = torch.optim.AdamW([*network.parameters(), *head.parameters()], lr=2e-3)
    em = OnlineEM(head.mixture, PRESETS["default"])
    for _ in range(epochs):
        for batch in torch.randperm(len(images)).split(64):
            output = head.classify(network(images[batch]))
            loss = nn.functional.cross_entropy(output.logits, labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            em.step(output.points.detach(), labels[batch], None)


def main() -> tuple[float, float]:
    """Train, evaluate, print; returns accuracy and AUROC."""
    torch.manual_seed(0)
    train_images, train_labels, test_images, test_labels = digits()
    network = encoder()
    head = GMMHead(
        64, ClassMixture(KNOWN, 2, 64, coordinates=Sphere(64)), projection="reference", link="class_norm"
    )
    train(network, head, train_images, train_labels)

    network.eval()
    with torch.no_grad():
        output = head.eval().classify(network(test_images))
    known = test_labels < KNOWN
    accuracy = (output.logits[known].argmax(1) == test_labels[known]).float().mean().item()
    auroc = roc_auc_score(~known, anomaly_score(output.evidence))
    print(f"known digits: accuracy {accuracy:.3f} ({int(known.sum())} images)")
    print(f"unknown digits against known: AUROC {auroc:.3f} ({int((~known).sum())} unknown images)")
    return accuracy, auroc


if __name__ == "__main__":
    main()
