// The operating point: one slider for coverage or risk, which all pictures below follow.

function controls(mount, view) {
  const point = view.point;
  const slider = el("input", { type: "range", id: "slider", "aria-describedby": "operating-says" });
  const field = el("input", { type: "number", id: "slider-value", inputmode: "decimal" });
  let source = null;
  const limits = () => (point.mode === "coverage" ? { min: 0, max: 100, step: 0.5 } : { min: 0, max: view.maxRisk(), step: 0.1 });
  const show = () => {
    const limit = limits();
    const value = Math.round(point.value * 1e5) / 1e3;
    for (const input of [slider, field]) {
      set(input, limit);
      input.setAttribute("aria-label", point.mode === "coverage" ? "Wanted coverage in percent" : "Accepted risk in percent");
    }
    if (source) source.hidden = point.mode !== "risk";
    slider.value = value;
    if (document.activeElement !== field) field.value = value;
    slider.setAttribute("aria-valuetext", point.mode === "coverage" ? `answer at least ${value}%` : `at most ${value}% wrong`);
  };
  const change = (input) => {
    const limit = limits();
    const value = Number(input.value);
    if (input.value === "" || !Number.isFinite(value)) return;
    point.value = Math.min(limit.max, Math.max(limit.min, value)) / 100;
    show();
    view.moved();
  };
  slider.addEventListener("input", () => change(slider));
  field.addEventListener("input", () => change(field));
  field.addEventListener("blur", show);
  const mode = (key, text) => {
    const input = el("input", { type: "radio", name: "mode", value: key, id: `mode-${key}` });
    input.checked = point.mode === key;
    input.addEventListener("change", () => {
      point.mode = key;
      point.value = key === "coverage" ? 0.8 : 0.05;
      show();
      view.moved();
    });
    return el("label", { class: "choice" }, input, el("span", { text }));
  };
  const box = el(
    "div",
    { class: "controls", role: "group", "aria-label": "Operating point" },
    el("div", { class: "choices" }, mode("coverage", "Answer at least"), mode("risk", "Accept errors up to")),
    el("div", { class: "slide" }, slider, el("span", { class: "unit" }, field, el("span", { text: "%" }))),
    view.hasValidation() ? sourceChoice(view, point) : null,
  );
  source = box.querySelector("#from-validation")?.parentElement;
  mount.append(box, el("p", { id: "operating-says", class: "says", "aria-live": "polite" }));
  show();
}

function sourceChoice(view, point) {
  const box = el("input", { type: "checkbox", id: "from-validation" });
  box.checked = point.source === "val";
  box.addEventListener("change", () => {
    point.source = box.checked ? "val" : "test";
    view.moved();
  });
  return el("label", { class: "choice small", title: "As in use: the threshold is found without the test set" }, box,
    el("span", { text: "threshold found on validation data" }));
}

function riskSection(mount, view) {
  const { node, host } = figure("Risk against coverage", "Lower is better. Drag in the picture, or use the slider; markers show the chosen point of each model.", "wide");
  let marks = () => {};
  responsive(host, (place, width) => {
    marks = drawRisk(place, width, view);
    marks();
  });
  const says = byId("operating-says");
  const holder = el("div", { class: "below" });
  mount.append(node, holder);
  node.append(numbers("risk at fixed coverage", () => riskTable(view)));
  view.follow(() => {
    marks();
    holder.replaceChildren(operatingTable(view));
    if (says) says.textContent = sentence(view);
  });
}

function drawRisk(host, width, view) {
  const models = view.models().filter(([, model]) => view.run(model).test);
  const top = Math.max(0.01, ...models.map(([, model]) => Math.max(...view.run(model).curve.curve().map(([c, r]) => (c > 0.02 ? r : 0)))));
  const c = chart(host, width, {
    height: Math.max(260, Math.min(400, width * 0.6)), x: [0, 1], y: [0, top * 1.05], percentX: true, percentY: true,
    xLabel: "coverage: share of inputs answered", yLabel: "risk: wrong among answered",
    label: `Risk–coverage curves of ${models.length} models; the table below shows the chosen point.`,
  });
  const clip = svg("clipPath", { id: "risk-clip" }, svg("rect", { x: c.left, y: c.top, width: c.width - c.left - c.right, height: c.height - c.bottom - c.top + 2 }));
  c.root.append(svg("defs", {}, clip));
  for (const [m, model] of models) {
    for (const run of model.runs) {
      if (run.test && run !== view.run(model)) line(c, run.curve.curve(120), { class: `${colour(m)} faint`, "clip-path": "url(#risk-clip)" });
    }
    line(c, view.run(model).curve.curve(), { class: colour(m), "stroke-dasharray": dash(m), "clip-path": "url(#risk-clip)" });
  }
  const guide = svg("path", { class: "guide" });
  c.root.append(guide);
  const dots = models.map(([m]) => dot(c, 0, 0, { class: `marker ${colour(m)}`, r: 6 }));
  dragging(c, view);
  return () => {
    const { mode, value } = view.point;
    guide.setAttribute("d", mode === "coverage" ? `M${c.sx(value)} ${c.top}V${c.height - c.bottom}` : `M${c.left} ${c.sy(Math.min(value, c.y1))}H${c.width - c.right}`);
    models.forEach(([, model], i) => {
      const at = operate(view.run(model), view.point);
      const known = Number.isFinite(at.risk);
      set(dots[i], { cx: c.sx(at.coverage), cy: c.sy(known ? Math.min(at.risk, c.y1) : 0) });
      dots[i].setAttribute("visibility", known ? "visible" : "hidden");
    });
  };
}

function dragging(c, view) {
  const move = (event) => {
    const box = c.root.getBoundingClientRect();
    const scale = c.width / box.width;
    const x = (event.clientX - box.left) * scale;
    const y = (event.clientY - box.top) * scale;
    const share = (x - c.left) / (c.width - c.left - c.right);
    const risk = c.y1 * (1 - (y - c.top) / (c.height - c.top - c.bottom));
    const wanted = view.point.mode === "coverage" ? Math.round(share * 200) / 200 : Math.round(risk * 1000) / 1000;
    view.setValue(Math.min(1, Math.max(0, wanted)));
  };
  c.root.classList.add("draggable");
  c.root.addEventListener("pointerdown", (event) => {
    c.root.setPointerCapture(event.pointerId);
    move(event);
  });
  c.root.addEventListener("pointermove", (event) => {
    if (c.root.hasPointerCapture(event.pointerId)) move(event);
  });
}

function operatingTable(view) {
  const foreign = view.bench.foreignNames;
  const rows = view.models().filter(([, model]) => view.run(model).test).map(([m, model]) => {
    const runs = model.runs.filter((run) => run.test);
    const points = runs.map((run) => operate(run, view.point));
    const chosen = operate(view.run(model), view.point);
    const [low, high] = wilson(chosen.wrong, chosen.answered);
    const caught = runs.map((run, i) => (run.curve.errors ? 1 - points[i].wrong / run.curve.errors : NaN));
    const interval = runs.length === 1 && chosen.answered ? ` (${percent(low)} – ${percent(high)})` : "";
    return [
      modelName(model, m),
      Number.isFinite(chosen.threshold) ? chosen.threshold.toFixed(3) : "none",
      overSeeds(points.map((p) => p.coverage)),
      overSeeds(points.map((p) => p.risk), 2) + interval,
      overSeeds(caught),
      ...foreign.map((name) => overSeeds(runs.filter((run) => run.foreign[name]).map((run) =>
        shareAbove(run.foreign[name].quantiles, operate(run, view.point).threshold)))),
    ];
  });
  const headings = ["Model", "Threshold", "Answered", "Wrong among answered", "Mistakes held back",
    ...foreign.map((name) => `${name.replace("ood/", "")} answered`)];
  const node = table("At the chosen point", headings, rows);
  node.id = "operating-table";
  return node;
}

function sentence(view) {
  const { mode, value } = view.point;
  const points = view.models().filter(([, model]) => view.run(model).test).map(([, model]) => [model.label, operate(view.run(model), view.point)]);
  const [first] = points.map(([, at]) => at).sort((a, b) => (mode === "coverage" ? a.risk - b.risk : b.coverage - a.coverage));
  const best = points.filter(([, at]) => (mode === "coverage" ? at.risk === first.risk : at.coverage === first.coverage));
  const who = best.map(([label]) => shorten(label, 40)).join(" and ");
  const verb = best.length > 1 ? ["make", "answer"] : ["makes", "answers"];
  if (!first.answered) return "No model can answer anything at this point.";
  return mode === "coverage"
    ? `Answering at least ${percent(value)} of inputs, ${who} ${verb[0]} the fewest errors: ${count(first.wrong)} in ${count(first.answered)} answers.`
    : `Accepting ${percent(value)} errors, ${who} ${verb[1]} the most: ${percent(first.coverage)} of inputs.`;
}

function riskTable(view) {
  const shares = range(20).map((i) => (i + 1) / 20);
  const models = view.models().filter(([, model]) => view.run(model).test);
  const rows = shares.map((share) => [percent(share, 0), ...models.map(([, model]) => percent(view.run(model).curve.atCoverage(share).risk, 2))]);
  return table("Risk at fixed coverage", ["Coverage", ...models.map(([, model]) => model.label)], rows, "plain");
}
