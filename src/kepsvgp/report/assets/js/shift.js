// Distribution shift: bars per kind of shift, curves over severity. Values are of metrics.json.

function shiftSets(bench) {
  const names = [...new Set(bench.models.flatMap((model) => Object.keys(model.metrics)))];
  const sets = new Map();
  for (const split of names.filter((name) => name.startsWith("shift/"))) {
    const parts = split.slice("shift/".length).split("/");
    const severity = parts.length > 1 && /^\d+$/.test(parts.at(-1)) ? Number(parts.pop()) : null;
    const kind = parts.join("/");
    if (!sets.has(kind)) sets.set(kind, new Map());
    sets.get(kind).set(severity, split);
  }
  return sets;
}

function shiftSection(mount, view) {
  const sets = shiftSets(view.bench);
  if (!sets.size) return false;
  const severities = [...new Set([...sets.values()].flatMap((s) => [...s.keys()]))].filter((s) => s !== null).sort((a, b) => a - b);
  const known = view.bench.metrics.filter((metric) => view.bench.models.some((model) =>
    Object.entries(model.metrics).some(([split, values]) => split.startsWith("shift/") && values[metric.key]?.length)));
  const choice = view.kept("shift", { metric: known.some((m) => m.key === "aurc") ? "aurc" : known[0]?.key, severity: "mean" });
  const pictures = el("div", {});
  const draw = () => {
    const metric = known.find((m) => m.key === choice.metric) ?? known[0];
    const bars = figure(`${metric.title} by kind of shift${choice.severity === "mean" && severities.length ? ", mean of all severities" : severities.length ? `, severity ${choice.severity}` : ""}`);
    responsive(bars.host, (place, width) => drawBars(place, width, view, sets, metric, choice.severity));
    bars.node.append(numbers("shift", () => shiftTable(view, sets, metric, choice.severity)));
    const parts = [bars.node];
    if (severities.length) {
      const curves = figure(`${metric.title} over severity, mean of ${sets.size} kinds`);
      responsive(curves.host, (place, width) => drawSeverity(place, width, view, sets, metric, severities));
      curves.node.append(el("figcaption", { text: "Severity 0 is the unshifted test set." }),
        numbers("severity", () => severityTable(view, sets, metric, severities)));
      parts.push(curves.node);
    }
    pictures.replaceChildren(el("div", { class: severities.length ? "split" : "" }, ...parts));
  };
  mount.append(
    el("div", { class: "fields" },
      select("Metric", known.map((m) => [m.key, m.title]), choice.metric, (value) => { choice.metric = value; draw(); }),
      severities.length ? select("Severity", [["mean", "mean of all"], ...severities.map((s) => [String(s), String(s)])], choice.severity, (value) => { choice.severity = value; draw(); }) : null),
    modelKey(view),
    pictures,
  );
  draw();
  return true;
}

// One value per seed: the metric on this kind of shift, a mean over severities if so chosen.
function shiftValues(model, splits, metric, severity) {
  const chosen = [...splits].filter(([s]) => severity === "mean" || s === null || String(s) === severity).map(([, split]) => model.metrics[split]?.[metric.key] ?? []);
  const complete = chosen.filter((values) => values.length === model.runs.length);
  return complete.length === chosen.length && chosen.length ? range(model.runs.length).map((i) => mean(complete.map((values) => values[i]))) : [];
}

// every kind of shift, after the unshifted test set to compare with
const withTest = (sets) => new Map([["unshifted", new Map([[null, "test"]])], ...sets]);

function drawBars(host, width, view, shifted, metric, severity) {
  const models = view.models();
  const sets = withTest(shifted);
  const kinds = [...sets.keys()];
  const bar = models.length > 6 ? 6 : 9;
  const row = models.length * (bar + 1) + 10;
  const left = Math.min(150, width * 0.36);
  const height = kinds.length * row + 44;
  const values = kinds.map((kind) => models.map(([, model]) => shiftValues(model, sets.get(kind), metric, severity)));
  const most = Math.max(1e-9, ...values.flat(2).filter(Number.isFinite));
  const c = chart(host, width, {
    left, height, top: 4, x: [0, most * 1.02], y: [0, 1], xLabel: metric.title + (metric.percent ? " (share)" : ""), percentX: false,
    xText: metric.percent ? (v) => percent(v, 0) : undefined,
    label: `${metric.title} of ${models.length} models on ${kinds.length - 1} kinds of shift; the numbers are in the table below.`,
  });
  c.root.querySelectorAll(".axes .grid, .axes text[text-anchor=end]").forEach((node) => node.remove());
  kinds.forEach((kind, k) => {
    const y = 4 + k * row;
    c.root.append(svg("text", { class: "tick", x: left - 8, y: y + row / 2, "text-anchor": "end", "aria-hidden": "true", text: shorten(kind.replaceAll("_", " "), 22) }));
    models.forEach(([m, model], i) => {
      const seeds = values[k][i];
      if (!seeds.length) return;
      const value = mean(seeds);
      const node = svg("rect", { class: `bar ${colour(m)}`, x: left, y: y + 4 + i * (bar + 1), width: Math.max(1, c.sx(value) - left), height: bar, rx: 1.5 });
      c.root.append(told(node, `${model.label}, ${kind}: ${metricText(metric, value)}`));
      if (seeds.length > 1) {
        const sd = deviation(seeds);
        const middle = y + 4 + i * (bar + 1) + bar / 2;
        c.root.append(svg("path", { class: "whisker", d: `M${c.sx(Math.max(0, value - sd))} ${middle}H${c.sx(value + sd)}` }));
      }
    });
  });
}

function severityMeans(model, sets, metric, severity) {
  if (severity === 0) return mean(model.metrics.test?.[metric.key] ?? []);
  const kinds = [...sets.values()].filter((splits) => splits.has(severity));
  const means = kinds.map((splits) => mean(model.metrics[splits.get(severity)]?.[metric.key] ?? []));
  return mean(means.filter(Number.isFinite));
}

function drawSeverity(host, width, view, sets, metric, severities) {
  const models = view.models();
  const steps = [0, ...severities];
  const curves = models.map(([, model]) => steps.map((s) => [s, severityMeans(model, sets, metric, s)]).filter(([, y]) => Number.isFinite(y)));
  const all = curves.flat().map(([, y]) => y);
  const [low, high] = [Math.min(...all), Math.max(...all)];
  const room = (high - low || 0.1) * 0.08;
  const c = chart(host, width, {
    height: 340, x: [0, steps.at(-1)], xTicks: steps, xText: String, y: [Math.max(0, low - room), high + room], percentY: metric.percent,
    xLabel: "severity", yLabel: metric.title, label: `${metric.title} against severity of the shift for ${models.length} models; the numbers are in the table below.`,
  });
  models.forEach(([m], i) => {
    line(c, curves[i], { class: colour(m), "stroke-dasharray": dash(m) });
    for (const [x, y] of curves[i]) dot(c, x, y, { class: `point ${colour(m)}`, r: 3.5 });
  });
}

function shiftTable(view, shifted, metric, severity) {
  const models = view.models();
  const sets = withTest(shifted);
  const rows = [...sets.keys()].map((kind) => [kind.replaceAll("_", " "), ...models.map(([, model]) => metricText(metric, mean(shiftValues(model, sets.get(kind), metric, severity))))]);
  return table(`${metric.title} by kind of shift`, ["Shift", ...models.map(([, model]) => model.label)], rows, "plain");
}

function severityTable(view, sets, metric, severities) {
  const models = view.models();
  const rows = [0, ...severities].map((s) => [String(s), ...models.map(([, model]) => metricText(metric, severityMeans(model, sets, metric, s)))]);
  return table(`${metric.title} over severity`, ["Severity", ...models.map(([, model]) => model.label)], rows, "plain");
}
