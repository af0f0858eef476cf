"""A report with one of everything, from made-up numbers, and a real browser to look at pages with."""

import json
import os
import shutil
import subprocess
import time

import numpy as np
import pytest

from gmmseg.report import panels, plots
from gmmseg.report.html import Report
from gmmseg.report.moving_threshold import levels
from gmmseg.report.parts import Column, Highlight, Matrix, Section, Slider, Table

NAMES = ("road", "building", "sky", "tree", "car")
COLOURS = ((128, 64, 128), (110, 110, 110), (70, 130, 180), (80, 142, 60), (0, 0, 142))


def made_up_curve(quality: float) -> dict:
    fpr = np.linspace(0, 1, 200) ** 2
    tpr = fpr ** (1 / quality)
    precision = 0.05 * tpr / np.maximum(0.05 * tpr + 0.95 * fpr, 1e-9)
    precision[0] = precision[1]
    area = quality / (quality + 1)
    curve = {"fpr": fpr.tolist(), "tpr": tpr.tolist(), "precision": precision.tolist()}
    return {**curve, "auroc": area, "ap": area / 2}


def made_up_reliability(bias: float) -> dict:
    confidence = (np.arange(15) + 0.5) / 15
    count = (1000 * confidence**6).astype(int)
    accuracy = confidence**bias
    return {"confidence": confidence.tolist(), "accuracy": accuracy.tolist(), "count": count.tolist()}


def made_up_log(speed: float) -> list[dict]:
    noise = np.random.default_rng(0).normal(0, 0.05, 1000)
    return [
        {
            "step": step,
            "loss": float(2 * np.exp(-step / speed) + 0.2 + noise[step]),
            "log_likelihood": float(-80 + 60 * (1 - np.exp(-step / speed))),
            "occupancy": float(0.6 + 0.1 * np.sin(step / 90)),
            "separation": float(1 + step / 300),
            "starved": int(step < 100),
        }
        for step in range(1000)
    ]


def made_up_mixture() -> dict:
    """Five classes of two components each in eight dimensions, points drawn from them, and some from none."""
    random = np.random.default_rng(1)
    means = random.normal(0, 2.5, (5, 2, 8))
    variances = random.uniform(0.1, 0.8, (5, 2, 8))
    labels = np.arange(5).repeat(400)
    components = random.integers(0, 2, labels.size)
    points = random.normal(means[labels, components], np.sqrt(variances[labels, components]))
    return {
        "points": points,
        "labels": labels,
        "means": means,
        "variances": variances,
        "names": NAMES,
        "colours": COLOURS,
        "unknown": random.normal(0, 2.5, (120, 8)),
    }


def made_up_example() -> panels.Example:
    rows, columns = np.mgrid[:180, :320]
    labels = np.where(rows > 110, 0, np.where(columns > 210, 1, np.where(columns < 70, 3, 2))).astype(
        np.uint8
    )
    shade = np.random.default_rng(2).integers(-18, 18, (180, 320, 1))
    image = (np.array(COLOURS)[labels] * 0.7 + 60 + shade).clip(0, 255).astype(np.uint8)
    distance = np.hypot(rows - 135, columns - 150)
    image[distance < 22] = (230, 120, 30)
    unknown = (distance < 22).astype(np.uint8)
    anomaly = (40 * np.exp(-((distance / 25) ** 4)) - 60 + shade[..., 0] / 6).astype(np.float32)
    confidence = np.clip(0.97 - 0.5 * np.exp(-((distance / 28) ** 2)), 0, 1).astype(np.float32)
    weak = (8 * np.exp(-((distance / 40) ** 2)) - 9 + shade[..., 0] / 6).astype(np.float32)
    return panels.Example(
        "scene 12",
        image,
        {
            "GMM": panels.ModelMaps(
                labels, confidence, anomaly, -35.0, anomaly > -35, levels=levels(anomaly, [-25, -35, -55], 1)
            ),
            "softmax": panels.ModelMaps(
                labels,
                np.full_like(confidence, 0.98),
                weak,
                -2.0,
                weak > -2,
                levels=levels(weak, [None, -2, -6], 1),
            ),
        },
        labels,
        unknown,
    )


@pytest.fixture(scope="session")
def scene() -> panels.Example:
    return made_up_example()


@pytest.fixture(scope="session")
def report(scene) -> Report:
    runs = {"GMM": made_up_log(150), "softmax": made_up_log(220)}
    histogram = {
        "edges": np.linspace(-80, 0, 41),
        "known": np.exp(-((np.linspace(-80, 0, 40) + 55) ** 2) / 90) * 1e6,
        "unknown": np.exp(-((np.linspace(-80, 0, 40) + 25) ** 2) / 200) * 1e3,
    }
    curves = {
        name: made_up_curve(quality)
        for name, quality in {
            "GMM likelihood": 40,
            "max-logit": 9,
            "energy": 8,
            "entropy": 6,
            "MSP": 5,
        }.items()
    }
    columns = (
        Column("model"),
        Column("mIoU", "higher"),
        Column("ECE", "lower", 2),
        Column("AUROC", "higher"),
        Column("AP", "higher"),
        Column("FPR95", "lower"),
        Column("parameters (M)", "", 2),
    )
    rows = (("GMM", 81.3, 0.84, 98.7, 71.2, 4.1, 1.62), ("softmax twin", 80.9, 2.31, 91.0, 32.9, 31.8, None))
    return Report(
        "Known and unknown on street scenes",
        (
            Section(
                "Summary",
                "Two networks, alike but for the classifier, trained on the same images.\n\n"
                "Made with `gmmseg demo`; scores are higher for the stranger pixel.",
                tables=(Table(columns, rows, "All numbers in percent; the best of each column stands out."),),
            ),
            Section(
                "Examples",
                legend=tuple(zip(NAMES, COLOURS)),
                galleries=(panels.panel(scene, COLOURS, 1),),
                slider=Slider(
                    "False alarms promised",
                    ("1 %", "5 %", "20 %"),
                    tuple(f"Flags at most {rate} % of known pixels." for rate in (1, 5, 20)),
                    1,
                    (255, 64, 160),
                ),
            ),
            Section("Detection", figures=(plots.roc_curves(curves), plots.pr_curves(curves))),
            Section(
                "Scores",
                figures=(
                    plots.score_histogram("GMM likelihood", histogram, -38.0),
                    plots.score_histogram("max-logit", histogram),
                ),
            ),
            Section(
                "Calibration",
                figures=(
                    plots.reliability_diagram(
                        {"GMM": made_up_reliability(1.1), "softmax": made_up_reliability(2)}
                    ),
                ),
            ),
            Section(
                "Class by class",
                matrices=(Matrix(NAMES, tuple(map(tuple, np.eye(5) * 0.8 + 0.04)), "GMM: confusion matrix"),),
            ),
            Section("Points and mixtures", figures=(plots.projection(**made_up_mixture()),)),
            Section("Training", figures=(plots.training_curve(runs, "loss"), *plots.em_diagnostics(runs))),
            Section("Configuration", details="steps: 1000\nmodel: tiny_unet <softmax & gmm>\n"),
        ),
        subtitle="Made-up numbers, seed 0",
        facts=(("made", "2026-01-02"), ("data", "nothing but numbers, and a name_" + "that_is_long" * 9)),
        highlights=(
            Highlight("mIoU", "81.3 %", "softmax twin 80.9 %"),
            Highlight("Anomaly AP", "71.2 %", "max-logit 32.9 %"),
            Highlight("FPR95", "4.1 %", "max-logit 31.8 %"),
            Highlight("ECE", "0.8 %", "softmax twin 2.3 %"),
        ),
    )


FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
]


class Browser:
    """One page of Chromium, spoken to through its debugging pipe; ``events`` holds all it reported."""

    def __init__(self, program: str, folder) -> None:
        read_commands, self._commands = os.pipe()
        self._replies, write_replies = os.pipe()

        def connect() -> None:
            # The browser reads commands from descriptor 3 and writes replies to 4.
            os.dup2(read_commands, 60)
            os.dup2(write_replies, 61)
            os.dup2(60, 3)
            os.dup2(61, 4)

        command = [program, *FLAGS, f"--user-data-dir={folder}", "about:blank"]
        self._process = subprocess.Popen(
            command, close_fds=False, preexec_fn=connect, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(read_commands)
        os.close(write_replies)
        os.set_blocking(self._replies, False)
        self.events: list[dict] = []
        self._count, self._buffer, self._session = 0, b"", None
        targets = self.call("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params) -> dict:
        """The result of a command."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        reply = self._wait(lambda message, number=self._count: message.get("id") == number)
        assert "error" not in reply, reply
        return reply["result"]

    def show(self, path) -> None:
        """Load a file and wait until it is there."""
        self.open(path.as_uri())

    def open(self, address: str) -> None:
        """Load what is at an address and wait until it is there."""
        self.events.clear()
        self.call("Page.navigate", url=address)
        if not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self._wait(lambda message: message.get("method") == "Page.loadEventFired")

    def value(self, expression: str):
        """What a JavaScript expression evaluates to in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def until(self, expression: str, seconds: float = 120):
        """Wait for a JavaScript expression to be true; an element of the page is."""
        deadline = time.monotonic() + seconds
        # By value an element arrives as an empty object, which Python takes for false.
        while not self.value(f"Boolean({expression})"):
            assert time.monotonic() < deadline, f"waited in vain for {expression}"
            time.sleep(0.1)

    def of(self, *methods: str) -> list[dict]:
        return [event["params"] for event in self.events if event.get("method") in methods]

    def _wait(self, wanted) -> dict:
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            while b"\0" in self._buffer:
                text, self._buffer = self._buffer.split(b"\0", 1)
                message = json.loads(text)
                self.events.append(message)
                if wanted(message):
                    return message
            try:
                self._buffer += os.read(self._replies, 1 << 20)
            except BlockingIOError:
                time.sleep(0.01)
        raise TimeoutError("the browser did not answer within 90 seconds")

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(10)
        os.close(self._commands)
        os.close(self._replies)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip(
            "no Chromium on this machine: install the package chromium to check the report in a browser"
        )
    browser = Browser(program, tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()
