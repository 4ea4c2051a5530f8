// Puts the sections together and redraws what a change concerns.

const data = JSON.parse(byId("report-data").textContent);
const kept = new Map();
const sprites = new Map();

class View {
  constructor(bench) {
    this.bench = bench;
    this.visible = new Set(range(bench.models.length));
    this.seeds = [...new Set(bench.models.flatMap((model) => model.runs.map((run) => run.seed)))].sort((a, b) => a - b);
    this.seed = this.seeds[0];
    this.point = { mode: "coverage", value: this.start(), source: "test" };
    this.followers = [];
  }

  // where the slider stands at first: where the models begin to differ
  start() {
    const errors = mean(this.bench.models.flatMap((model) => model.runs.filter((run) => run.test).map((run) => run.curve.errors / run.curve.total)));
    return errors < 0.05 ? 0.95 : errors < 0.1 ? 0.9 : 0.8;
  }

  models() {
    return this.bench.models.map((model, m) => [m, model]).filter(([m]) => this.visible.has(m));
  }

  run(model) {
    return model.runs.find((run) => run.seed === this.seed) ?? model.runs[0];
  }

  // the foreign set shown beside right and wrong answers
  foreign() {
    const choice = this.kept("foreign", { name: this.bench.foreignNames[0] });
    return choice.name;
  }

  trainings() {
    return this.bench.trainings.filter((run) => this.visible.has(run.model))
      .map((run) => ({ ...run, leads: run.seed === this.run(this.bench.models[run.model]).seed }));
  }

  hasValidation() {
    return this.bench.models.some((model) => model.runs.some((run) => run.val));
  }

  maxRisk() {
    const risks = this.bench.models.flatMap((model) => model.runs.filter((run) => run.test).map((run) => run.curve.errors / run.curve.total));
    return Math.min(100, Math.max(10, Math.ceil(100 * Math.max(0, ...risks))));
  }

  kept(name, initial) {
    const id = `${this.bench.title} ${name}`;
    if (!kept.has(id)) kept.set(id, initial);
    return kept.get(id);
  }

  sprite(uri) {
    if (!sprites.has(uri)) {
      const image = new Image();
      image.src = uri;
      sprites.set(uri, image);
    }
    return sprites.get(uri);
  }

  paint(kind) {
    return getComputedStyle(document.documentElement).getPropertyValue(`--${kind}`).trim();
  }

  follow(f) {
    this.followers.push(f);
  }

  setValue(value) {
    this.point.value = value;
    const [slider, field] = [byId("slider"), byId("slider-value")];
    slider.value = field.value = Math.round(value * 1e5) / 1e3;
    this.moved();
  }

  moved() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      for (const f of this.followers) f();
    });
  }
}

const SECTIONS = {
  reliability: reliabilitySection,
  risk: riskSection,
  confidence: confidenceSection,
  uncertainty: uncertaintySection,
  roc: rocSection,
  novelty: noveltySection,
  abstained: abstainedSection,
  shift: shiftSection,
  kernel: kernelSection,
  training: trainingSection,
  examples: examplesSection,
};
// what needs no predictions of the test set, and is left out where its own numbers are missing
const OPTIONAL = ["novelty", "shift", "kernel", "training"];

function noPredictions() {
  const command = el("code", { text: "kepsvgp evaluate RUN" });
  return el("p", { class: "absent" }, "These runs hold no predictions of the test set. To keep them, run ", command);
}

function legend(view) {
  const mount = byId("legend");
  mount.replaceChildren();
  if (view.bench.models.length > 1) {
    for (const [m, model] of view.bench.models.entries()) {
      const button = el("button", { type: "button", class: "pill", "aria-pressed": String(view.visible.has(m)), title: `Show or hide ${model.label}` }, modelName(model, m));
      button.addEventListener("click", () => {
        if (view.visible.has(m) && view.visible.size > 1) view.visible.delete(m);
        else view.visible.add(m);
        button.setAttribute("aria-pressed", String(view.visible.has(m)));
        sections(view);
      });
      mount.append(button);
    }
  }
  if (view.seeds.length > 1) {
    mount.append(select("Pictures of seed", view.seeds.map((seed) => [String(seed), String(seed)]), String(view.seed), (value) => {
      view.seed = Number(value);
      sections(view);
    }));
  }
  if (view.bench.foreignNames.length > 1) {
    const choice = view.kept("foreign", { name: view.bench.foreignNames[0] });
    mount.append(select("Out-of-distribution set", view.bench.foreignNames.map((name) => [name, name.replace("ood/", "")]), choice.name, (value) => {
      choice.name = value;
      sections(view);
    }));
  }
}

function sections(view) {
  view.followers = [];
  const hasTest = view.bench.total > 0;
  const control = byId("operating-controls");
  control.replaceChildren();
  if (hasTest) controls(control, view);
  for (const [name, make] of Object.entries(SECTIONS)) {
    const mount = byId(`${name}-body`);
    mount.replaceChildren();
    if (OPTIONAL.includes(name)) {
      const parts = [byId(name), document.querySelector(`nav a[href="#${name}"]`)];
      // visible while it is drawn, as pictures take the width they find
      for (const part of parts) part.hidden = false;
      const isEmpty = make(mount, view) === false;
      for (const part of parts) part.hidden = isEmpty;
    } else if (hasTest) make(mount, view);
    else mount.append(noPredictions());
  }
  for (const f of view.followers) f();
}

const views = new Map();
let current = 0;

function open(index) {
  current = index;
  document.querySelectorAll("[data-bench]").forEach((node) => { node.hidden = node.dataset.bench !== String(index); });
  document.querySelectorAll("#tabs button").forEach((node, i) => node.setAttribute("aria-pressed", String(i === index)));
  if (!views.has(index)) views.set(index, new View(openBench(data.benchmarks[index])));
  legend(views.get(index));
  sections(views.get(index));
}

document.querySelectorAll("#tabs button").forEach((node, i) => node.addEventListener("click", () => open(i)));
// points on a canvas do not follow the colours of the page by themselves
document.addEventListener("kepsvgp-theme", () => sections(views.get(current)));
open(0);
