"use strict";
// Pictures that open large, a swipe between two of them, and thresholds that move. Nothing is fetched.
(() => {
  const make = (tag, attributes = {}, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  };

  // What is unknown ---------------------------------------------------------------------------------------
  // A pixel's level is the first position of the slider at which it is unknown.
  const decoded = async (address) => {
    const picture = new Image();
    picture.src = address;
    await picture.decode();
    const canvas = make("canvas", { width: picture.naturalWidth, height: picture.naturalHeight });
    const context = canvas.getContext("2d", { willReadFrequently: true });
    context.drawImage(picture, 0, 0);
    const { data, width, height } = context.getImageData(0, 0, canvas.width, canvas.height);
    return { width, height, values: Uint8Array.from({ length: width * height }, (_, i) => data[4 * i]) };
  };

  // Draws what is unknown at a position: a light tint inside, an outline around; returns its share.
  const paint = (canvas, levels, position, colour) => {
    const { width, height, values } = levels;
    canvas.width = width;
    canvas.height = height;
    const picture = new ImageData(width, height);
    const reach = Math.max(1, Math.floor(Math.min(width, height) / 180));
    const near = (x, y) => x >= 0 && y >= 0 && x < width && y < height && values[y * width + x] <= position;
    let count = 0;
    for (let y = 0; y < height; y++) {
      for (let x = 0; x < width; x++) {
        const inside = values[y * width + x] <= position;
        count += inside;
        let beside = false;
        for (let r = 1; !inside && !beside && r <= reach; r++)
          beside = near(x - r, y) || near(x + r, y) || near(x, y - r) || near(x, y + r);
        if (inside || beside) picture.data.set([...colour, inside ? 64 : 255], 4 * (y * width + x));
      }
    }
    canvas.getContext("2d").putImageData(picture, 0, 0);
    return count / values.length;
  };

  class Threshold {
    constructor(bar) {
      this.bar = bar;
      this.input = bar.querySelector("input");
      this.colour = bar.dataset.colour.split(" ").map(Number);
      Object.assign(this, JSON.parse(bar.dataset.steps));
      this.inputs = [this.input];
      this.figures = [...bar.closest("section").querySelectorAll("figure[data-levels]")];
      this.watchers = new Set();
      this.input.addEventListener("input", () => this.move(Number(this.input.value)));
      bar.querySelector("button").addEventListener("click", () => this.move(Number(this.input.defaultValue)));
    }

    async start() {
      for (const figure of this.figures) await this.prepare(figure);
      this.bar.hidden = false;
      this.move(Number(this.input.defaultValue));
    }

    // The picture becomes the plain photograph under a canvas; its caption tells how much is unknown.
    async prepare(figure) {
      figure.levels = await decoded(figure.dataset.levels);
      const picture = figure.querySelector("img");
      const photograph = figure.closest(".gallery").querySelector("img");
      const stack = make("span", { class: "stack" });
      figure.canvas = make("canvas", { "aria-hidden": "true" });
      picture.replaceWith(stack);
      picture.src = photograph.src;
      stack.append(picture, figure.canvas);
      figure.share = make("output");
      figure.querySelector("figcaption").append(" ", figure.share);
    }

    move(position) {
      this.position = position;
      for (const input of this.inputs) {
        input.value = position;
        input.setAttribute("aria-valuetext", this.positions[position]);
      }
      this.bar.querySelector("output").textContent = this.positions[position];
      this.bar.querySelector("p").textContent = this.notes[position];
      for (const figure of this.figures) {
        const share = paint(figure.canvas, figure.levels, position, this.colour);
        figure.share.textContent = `${(100 * share).toFixed(1)} % of the picture`;
      }
      for (const watcher of this.watchers) watcher();
    }
  }

  // One picture, large ------------------------------------------------------------------------------------
  const range = (label, attributes) => {
    const input = make("input", { type: "range", ...attributes });
    return [make("label", {}, make("span", {}, label), input), input];
  };

  class Viewer {
    constructor(thresholds) {
      this.thresholds = thresholds;
      this.title = make("h2", { id: "viewer-title" });
      this.before = make("img", { class: "before", alt: "" });
      this.after = make("img", { alt: "" });
      this.canvas = make("canvas", { "aria-hidden": "true" });
      this.cover = make("div", { class: "after" }, this.after, this.canvas);
      this.stage = make("div", { class: "stage" }, this.before, this.cover, make("i", { class: "line" }));
      const scrolling = { class: "scroll", tabindex: "0", role: "group", "aria-label": "Picture" };
      this.scroll = make("div", scrolling, this.stage);
      const percent = { min: "0", max: "100", step: "1", value: "50" };
      [this.swiping, this.swipe] = range("Swipe", percent);
      [this.zooming, this.zoom] = range("Zoom", { min: "1", max: "8", step: "0.25", value: "1" });
      [this.moving, this.threshold] = range("Threshold", { min: "0", max: "1", step: "1" });
      this.note = make("p", { role: "status" });
      const [back, on, close] = ["Previous", "Next", "Close"].map((name) =>
        make("button", { type: "button" }, name),
      );
      this.dialog = make(
        "dialog",
        { class: "viewer", "aria-labelledby": "viewer-title" },
        make("div", { class: "bar" }, this.title, back, on, close),
        this.scroll,
        make("div", { class: "controls" }, this.swiping, this.zooming, this.moving),
        this.note,
      );
      back.addEventListener("click", () => this.step(-1));
      on.addEventListener("click", () => this.step(1));
      close.addEventListener("click", () => this.dialog.close());
      this.listen();
    }

    listen() {
      this.swipe.addEventListener("input", () => this.place());
      this.zoom.addEventListener("input", () => this.place());
      this.threshold.addEventListener("input", () => this.owner?.move(Number(this.threshold.value)));
      this.dialog.addEventListener("close", () => this.release());
      this.dialog.addEventListener("keydown", (event) => {
        const change = { "+": 0.5, "=": 0.5, "-": -0.5 }[event.key];
        if (change) this.magnify(Number(this.zoom.value) + change);
      });
      this.stage.addEventListener("dblclick", () => this.magnify(this.zoom.value > 1 ? 1 : 3));
      const drag = (event) => {
        if (!event.buttons || this.swiping.hidden) return;
        const box = this.stage.getBoundingClientRect();
        this.swipe.value = (100 * (event.clientX - box.left)) / box.width;
        this.place();
      };
      this.stage.addEventListener("pointerdown", drag);
      this.stage.addEventListener("pointermove", drag);
      this.stage.addEventListener("dragstart", (event) => event.preventDefault());
    }

    open(figure) {
      this.figures = [...figure.closest(".gallery").querySelectorAll("figure")];
      this.gallery = figure.closest(".gallery").previousElementSibling?.textContent ?? "";
      this.zoom.value = 1;
      this.swipe.value = 50;
      if (!this.dialog.isConnected) document.body.append(this.dialog);
      this.show(figure);
      this.dialog.showModal();
    }

    show(figure) {
      this.release();
      this.figure = figure;
      const compared = "compared" in figure.closest(".gallery").dataset;
      const picture = figure.querySelector("img");
      const photograph = compared ? this.figures[0].querySelector("img") : picture;
      this.before.src = photograph.src;
      this.after.src = picture.src;
      this.after.alt = picture.alt;
      this.swiping.hidden = !compared || figure === this.figures[0];
      this.owner = this.thresholds.find((each) => each.figures.includes(figure));
      this.moving.hidden = this.canvas.hidden = !this.owner;
      if (this.owner) {
        this.threshold.max = this.owner.input.max;
        this.owner.inputs.push(this.threshold);
        this.owner.watchers.add((this.watcher = () => this.repaint()));
        this.owner.move(this.owner.position);
      }
      const { naturalWidth, naturalHeight } = photograph;
      this.stage.style.setProperty("--aspect", naturalWidth / naturalHeight || 1);
      this.describe();
      this.place();
    }

    repaint() {
      paint(this.canvas, this.figure.levels, this.owner.position, this.owner.colour);
      this.describe();
    }

    describe() {
      const share = this.figure.share?.textContent;
      const caption = (this.figure.querySelector("figcaption")?.textContent ?? "").replace(` ${share}`, `, ${share}`);
      this.title.textContent = [this.gallery, caption].filter(Boolean).join(" · ");
      this.note.textContent = this.owner ? this.owner.notes[this.owner.position] : "";
    }

    release() {
      if (!this.owner) return;
      this.owner.inputs = this.owner.inputs.filter((input) => input !== this.threshold);
      this.owner.watchers.delete(this.watcher);
      this.owner = undefined;
    }

    step(by) {
      const count = this.figures.length;
      this.show(this.figures[(this.figures.indexOf(this.figure) + by + count) % count]);
    }

    magnify(zoom) {
      this.zoom.value = zoom;
      this.place();
    }

    place() {
      this.stage.style.setProperty("--zoom", this.zoom.value);
      this.stage.style.setProperty("--at", `${this.swiping.hidden ? 0 : this.swipe.value}%`);
      this.zoom.setAttribute("aria-valuetext", `${this.zoom.value} times`);
      this.dialog.classList.toggle("near", this.zoom.value > 1);
      this.dialog.classList.toggle("single", this.swiping.hidden);
    }
  }

  const start = async () => {
    const thresholds = [...document.querySelectorAll(".slider")].map((bar) => new Threshold(bar));
    for (const threshold of thresholds) await threshold.start();
    const viewer = new Viewer(thresholds);
    for (const figure of document.querySelectorAll(".gallery figure")) {
      const shown = figure.querySelector(".stack") ?? figure.querySelector("img");
      const label = `Open large: ${figure.querySelector("img").alt}`;
      const button = make("button", { type: "button", class: "open", "aria-label": label });
      shown.replaceWith(button);
      button.append(shown);
      button.addEventListener("click", () => viewer.open(figure));
    }
    document.documentElement.dataset.ready = "yes";
  };
  start();
})();
