// Examples: pictures or texts with the model's probabilities as bars.

const pageSize = () => (window.innerWidth < 700 ? 6 : 15);

function picture(view, shown, place, label) {
  const { pictures } = shown;
  const image = view.sprite(pictures.uri);
  const canvas = el("canvas", { class: "thumb", role: "img", "aria-label": label, width: pictures.width, height: pictures.height });
  const draw = () => canvas.getContext("2d").drawImage(
    image,
    (place % pictures.columns) * pictures.width, Math.floor(place / pictures.columns) * pictures.height,
    pictures.width, pictures.height, 0, 0, pictures.width, pictures.height,
  );
  if (image.complete) draw();
  else image.addEventListener("load", draw, { once: true });
  return canvas;
}

function content(view, shown, place, label) {
  if (place === undefined || !shown) return el("div", { class: "thumb none", text: "not in the page" });
  if (shown.pictures) return picture(view, shown, place, label);
  const text = el("blockquote", { class: "text", dir: "auto", tabindex: "0", text: shown.texts[place] });
  return text;
}

const className = (view, k) => view.bench.classes[k] ?? `class ${k}`;

function bars(view, entries, truth) {
  return el("ul", { class: "bars" }, ...entries.map(([k, p]) => {
    const fill = svg("svg", { class: "fill", viewBox: "0 0 100 4", preserveAspectRatio: "none", "aria-hidden": "true" }, svg("rect", { width: 100 * p, height: 4 }));
    const kind = truth === null ? "" : k === truth ? "is-true" : "is-other";
    return el("li", { class: kind }, el("span", { class: "name", dir: "auto", title: className(view, k), text: shorten(className(view, k), 80) }), el("span", { class: "value", text: percent(p) }), fill);
  }));
}

// the three most probable classes, and the true one if it is close behind
function topEntries(top, place, predicted, confidence, truth) {
  if (!top || place === undefined) return [[predicted, confidence]];
  return range(top.count)
    .map((j) => [top.classes[place * top.count + j], top.probs[place * top.count + j]])
    .filter(([k], j) => j < 3 || k === truth);
}

function testTile(view, run, row) {
  const { bench } = view;
  const position = bench.positions[row];
  const place = bench.place.get(position);
  const truth = bench.labels[row];
  const predicted = run.test.predicted[row];
  const right = predicted === truth;
  const label = `Test example ${position}, class ${shorten(className(view, truth), 80)}`;
  return el(
    "li",
    { class: `tile ${right ? "right" : "wrong"}`, "data-position": position, "data-row": row },
    content(view, bench.shown, place, label),
    el("div", { class: "what" },
      el("p", { class: "claim" }, el("span", { class: "mark", text: right ? "✓ right" : "✗ wrong" }), el("span", { class: "number", text: `#${position}` })),
      el("p", { class: "truth", dir: "auto", title: className(view, truth), text: `is ${shorten(className(view, truth), 200)}` }),
      bars(view, topEntries(run.test.top, place, predicted, run.test.confidence[row], truth), truth)),
  );
}

function foreignTile(view, run, name, place) {
  const shown = view.bench.foreign[name];
  const position = shown.positions[place];
  const top = run.foreign[name].top;
  const label = `Out-of-distribution input ${position} of ${name.replace("ood/", "")}`;
  return el(
    "li",
    { class: "tile foreign", "data-position": position },
    content(view, shown, place, label),
    el("div", { class: "what" },
      el("p", { class: "claim" }, el("span", { class: "mark", text: "not in the training data" }), el("span", { class: "number", text: `#${position}` })),
      el("p", { class: "truth", text: `from ${name.replace("ood/", "")}` }),
      top?.p ? el("p", { class: "truth", text: `p-value ${top.p[place].toFixed(4)}` }) : null,
      bars(view, topEntries(top, place, 0, 0, null), null)),
  );
}

// A list that shows a page of its items at a time, and keeps its tiles while they stay the same.
class PagedList {
  constructor(mount, empty) {
    this.list = el("ul", { class: "tiles" });
    this.more = el("button", { type: "button", class: "more", on: { click: () => this.grow() } });
    this.none = el("p", { class: "absent", text: empty });
    this.shown = [];
    this.kind = null;
    mount.append(this.list, this.more, this.none);
  }

  // `kind` names what `make` makes of an item; another kind makes all tiles anew
  show(items, make, kind) {
    Object.assign(this, { items, make });
    const same = kind === this.kind && this.shown.every((item, i) => items[i] === item);
    if (!same || this.shown.length < Math.min(pageSize(), items.length)) {
      this.list.replaceChildren();
      this.shown = [];
      this.grow();
    }
    this.kind = kind;
    this.tell();
  }

  grow() {
    const next = this.items.slice(this.shown.length, this.shown.length + pageSize());
    this.list.append(...next.map(this.make));
    this.shown.push(...next);
    this.tell();
  }

  tell() {
    const left = this.items.length - this.shown.length;
    this.none.hidden = this.items.length > 0;
    this.more.hidden = left <= 0;
    this.more.textContent = `Show ${Math.min(pageSize(), left)} more of ${count(left)}`;
  }
}

function modelChoice(view, choice, change) {
  const options = view.models().filter(([, model]) => view.run(model).test).map(([m, model]) => [String(m), model.label]);
  if (!options.some(([m]) => m === choice.model)) choice.model = options[0]?.[0];
  return select("Model", options, choice.model, (value) => { choice.model = value; change(); });
}

function abstainedSection(mount, view) {
  const choice = view.kept("abstained", { model: "0", order: "least" });
  const heading = el("h3", { id: "abstained-count", "aria-live": "polite" });
  const holder = el("div", { id: "abstained" });
  const list = new PagedList(holder, "Nothing is held back at this point: every input is answered.");
  const draw = () => {
    const model = view.bench.models[Number(choice.model)];
    if (!model) return;
    const run = view.run(model);
    const at = operate(run, view.point);
    const rows = Array.from(run.curve.order.subarray(at.answered));
    if (choice.order === "least") rows.reverse();
    heading.textContent = `${count(rows.length)} of ${count(view.bench.total)} test examples held back`;
    list.show(rows, (row) => testTile(view, run, row), choice.model);
  };
  mount.append(
    el("div", { class: "fields" }, modelChoice(view, choice, draw),
      select("Order", [["least", "least confident first"], ["near", "nearest the threshold first"]], choice.order, (value) => { choice.order = value; draw(); })),
    heading, holder,
  );
  view.follow(draw);
}

const KINDS = {
  mistakes: "The most confident mistakes",
  hits: "The least confident right answers",
  foreign: "The most confident answers to out-of-distribution inputs",
};

function exampleRows(view, run, kind, chosen) {
  const { labels } = view.bench;
  const order = Array.from(run.curve.order);
  const wanted = kind === "mistakes" ? order.filter((row) => !run.test.correct[row]) : order.reverse().filter((row) => run.test.correct[row]);
  return chosen === "all" ? wanted : wanted.filter((row) => String(labels[row]) === chosen);
}

function examplesSection(mount, view) {
  const { bench } = view;
  const foreignNames = bench.foreignNames.filter((name) => bench.foreign[name]?.positions.length);
  const choice = view.kept("examples", { model: "0", kind: "mistakes", cls: "all", foreign: foreignNames[0] });
  const holder = el("div", { id: "examples-list" });
  const heading = el("h3", { id: "examples-count", "aria-live": "polite" });
  const list = new PagedList(holder, "None for this choice.");
  const setField = foreignNames.length > 1 ? select("Set", foreignNames.map((name) => [name, name.replace("ood/", "")]), choice.foreign, (value) => { choice.foreign = value; draw(); }) : null;
  const draw = () => {
    const model = bench.models[Number(choice.model)];
    if (!model) return;
    const run = view.run(model);
    if (setField) setField.hidden = choice.kind !== "foreign";
    if (choice.kind === "foreign") {
      const top = run.foreign[choice.foreign]?.top;
      const places = top ? range(bench.foreign[choice.foreign].positions.length)
        .filter((place) => choice.cls === "all" || String(top.classes[place * top.count]) === choice.cls)
        .sort((a, b) => top.probs[b * top.count] - top.probs[a * top.count]) : [];
      heading.textContent = `${count(places.length)} out-of-distribution inputs in the page, the most confident first`;
      list.show(places, (place) => foreignTile(view, run, choice.foreign, place), `${choice.model} ${choice.foreign}`);
      return;
    }
    const rows = exampleRows(view, run, choice.kind, choice.cls);
    heading.textContent = choice.kind === "mistakes" ? `${count(rows.length)} mistakes` : `${count(rows.length)} right answers`;
    list.show(rows, (row) => testTile(view, run, row), choice.model);
  };
  const kinds = Object.entries(KINDS).filter(([kind]) => kind !== "foreign" || foreignNames.length);
  if (!kinds.some(([kind]) => kind === choice.kind)) choice.kind = "mistakes";
  mount.append(
    el("div", { class: "fields" },
      select("Show", kinds, choice.kind, (value) => { choice.kind = value; draw(); }),
      modelChoice(view, choice, draw),
      select("Class", [["all", "all classes"], ...bench.classes.map((name, k) => [String(k), name])], choice.cls, (value) => { choice.cls = value; draw(); }),
      setField),
    heading, holder,
  );
  draw();
}
