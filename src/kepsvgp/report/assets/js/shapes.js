// Confidence histograms, the two kinds of uncertainty, and ROC curves.

const BINS = 25;

function histogram(confidence, keep) {
  const counts = new Array(BINS).fill(0);
  let total = 0;
  for (let i = 0; i < confidence.length; i++) {
    if (!keep(i)) continue;
    counts[Math.min(BINS - 1, Math.max(0, Math.ceil(confidence[i] * BINS) - 1))] += 1;
    total += 1;
  }
  return { shares: counts.map((n) => (total ? n / total : 0)), total };
}

function confidenceSection(mount, view) {
  const grid = el("div", { class: "grid" });
  const legend = [["correct", "right"], ["wrong", "wrong"]];
  const foreign = view.foreign();
  if (foreign) legend.push(["foreign", foreign.replace("ood/", "") + " (out of distribution)"]);
  mount.append(key(legend), grid);
  for (const [m, model] of view.models()) {
    const run = view.run(model);
    if (!run.test) continue;
    const { node, host } = figure(modelName(model, m));
    const right = histogram(run.test.confidence, (i) => run.test.correct[i]);
    const wrong = histogram(run.test.confidence, (i) => !run.test.correct[i]);
    const set = foreign && run.foreign[foreign];
    let mark = () => {};
    responsive(host, (place, width) => {
      mark = drawHistogram(place, width, right, wrong, set, model.label, view, run);
      mark();
    });
    view.follow(() => mark());
    node.append(
      el("figcaption", { text: `${count(right.total)} right, ${count(wrong.total)} wrong${set ? `, ${count(set.count)} out of distribution` : ""}. Dashed: the threshold of the slider.` }),
      numbers(`confidence of ${shorten(model.label, 40)}`, () => table(`Shares of confidence, ${model.label}`,
        ["Confidence", "Right", "Wrong", ...(set ? ["Out of distribution"] : [])],
        range(BINS).map((b) => [`${percent(b / BINS, 0)} – ${percent((b + 1) / BINS, 0)}`, percent(right.shares[b]), percent(wrong.shares[b]), ...(set ? [percent(set.shares[b])] : [])]), "plain")),
    );
    grid.append(node);
  }
}

function key(entries) {
  return el("p", { class: "key" }, ...entries.map(([kind, text]) => el("span", { class: "key-entry" }, el("span", { class: `chip ${kind}`, "aria-hidden": "true" }), text)));
}

function drawHistogram(host, width, right, wrong, set, label, view, run) {
  const guide = drawGroups(host, width, [["correct", right], ["foreign", set && { shares: set.shares, total: set.count }], ["wrong", wrong]], {
    percentX: true, xLabel: "confidence",
    label: `Histogram of the confidence of ${label} for right and wrong answers${set ? " and out-of-distribution inputs" : ""}; the numbers are in the table below.`,
  });
  return () => guide(operate(run, view.point).threshold);
}

// Histograms of some groups over [0, 1]; returns what moves a dashed line to a place.
function drawGroups(host, width, given, options) {
  const groups = given.filter(([, group]) => group?.total);
  const top = Math.max(0.05, ...groups.filter(([, group]) => group.total >= FEW).flatMap(([, group]) => group.shares));
  const c = chart(host, width, { height: 230, x: [0, 1], y: [0, top * 1.05], percentY: true, yLabel: "share of group", ...options });
  const steps = (shares) => shares.flatMap((s, b) => [[b / BINS, s], [(b + 1) / BINS, s]]);
  for (const [kind, group] of groups) {
    if (group.total < FEW) pile(c, group, kind);
    else line(c, [[0, 0], ...steps(group.shares), [1, 0]], { class: `area ${kind}` }).removeAttribute("fill");
  }
  const guide = svg("path", { class: "guide" });
  c.root.append(guide);
  return (at) => guide.setAttribute("d", `M${c.sx(Number.isFinite(at) ? at : 1)} ${c.top}V${c.height - c.bottom}`);
}

// a point for each example of a group that is too small for a histogram
function pile(c, group, kind) {
  group.shares.forEach((share, b) => {
    const base = c.sy(0) - 5;
    for (const place of range(Math.round(share * group.total))) dot(c, (b + 0.5) / BINS, 0, { class: `single ${kind}`, cy: base - 9 * place });
  });
}

function uncertaintySection(mount, view) {
  const grid = el("div", { class: "grid" });
  const foreign = view.foreign();
  mount.append(key([["correct", "right"], ["wrong", "wrong"], ...(foreign ? [["foreign", foreign.replace("ood/", "") + " (a sample)"]] : [])]), grid);
  const rows = [];
  const shown = view.models().filter(([, model]) => view.run(model).test);
  // one scale for all models, so that they can be compared
  const most = Math.max(0, ...shown.map(([, model]) => largestEpistemic(view.run(model), foreign)));
  for (const [m, model] of shown) {
    const run = view.run(model);
    const set = foreign && run.foreign[foreign];
    const means = groupMeans(run, set);
    rows.push(...means.map(([name, total, aleatoric]) => [`${model.label}, ${name}`, total.toFixed(3), aleatoric.toFixed(3), Math.max(0, total - aleatoric).toFixed(3)]));
    const { node, host } = figure(modelName(model, m));
    const own = largestEpistemic(run, null);
    if (own < 1e-3) {
      node.classList.add("empty");
      host.replaceWith(el("p", { class: "absent", text: noEpistemic(run.test.samples) }));
    } else {
      responsive(host, (place, width) => drawUncertainty(place, width, run, set, most, view, model.label));
    }
    grid.append(node);
  }
  mount.append(numbers("mean uncertainty, nats", () => table("Mean uncertainty in nats", ["Model and group", "Total", "Aleatoric", "Epistemic"], rows, "plain")));
}

function largestEpistemic(run, foreign) {
  let most = 0;
  for (const set of [run.test, foreign && run.foreign[foreign]]) {
    for (let i = 0; set && i < set.entropy.length; i++) most = Math.max(most, set.entropy[i] - set.aleatoric[i]);
  }
  return most;
}

function noEpistemic(samples) {
  return samples > 1
    ? `Its ${samples} sampled models agree: the epistemic part is below 0.001 nats everywhere, so all uncertainty counts as aleatoric.`
    : "This model answers in one pass, so it has no epistemic part: all its uncertainty counts as aleatoric.";
}

function groupMeans(run, set) {
  const { entropy, aleatoric, correct } = run.test;
  const group = (name, keep) => {
    const kept = range(entropy.length).filter(keep);
    return [name, mean(kept.map((i) => entropy[i])), mean(kept.map((i) => aleatoric[i]))];
  };
  const groups = [group("right", (i) => correct[i]), group("wrong", (i) => !correct[i])];
  if (set) groups.push(["out of distribution", set.meanEntropy, set.meanAleatoric]);
  return groups.filter(([, total]) => Number.isFinite(total));
}

function drawUncertainty(host, width, run, set, most, view, label) {
  const { entropy, aleatoric, correct } = run.test;
  const c = chart(host, width, {
    height: 280, x: [0, view.bench.entropyScale], y: [0, most * 1.05], xLabel: "aleatoric, nats", yLabel: "epistemic, nats",
    label: `Aleatoric against epistemic uncertainty of ${label}, one point an example; group means are in the table below.`,
  });
  // ten thousand points are for a canvas; it lies exactly over the axes
  const canvas = el("canvas", { class: "cloud", "aria-hidden": "true" });
  host.append(canvas);
  const ratio = Math.min(2, window.devicePixelRatio || 1);
  canvas.width = width * ratio;
  canvas.height = c.height * ratio;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  const draw = (kind, xs, ys, keep, size, alpha) => {
    pen.fillStyle = view.paint(kind);
    pen.globalAlpha = alpha;
    for (let i = 0; i < xs.length; i++) {
      if (!keep(i)) continue;
      pen.beginPath();
      pen.arc(c.sx(xs[i]), c.sy(Math.max(0, ys[i] - xs[i])), size, 0, 6.2832);
      pen.fill();
    }
  };
  const crowd = entropy.length > 3000 ? 0.35 : 0.6;
  draw("correct", aleatoric, entropy, (i) => correct[i], 2, crowd);
  if (set) draw("foreign", set.aleatoric, set.entropy, () => true, 2, 0.5);
  draw("wrong", aleatoric, entropy, (i) => !correct[i], 2.6, 0.85);
}

function rocSection(mount, view) {
  const box = el("div", { class: "grid two" });
  mount.append(modelKey(view), box);
  rocFigure(box, view, null);
  for (const name of view.bench.foreignNames) rocFigure(box, view, name);
}

function rocFigure(box, view, foreign) {
  const title = foreign ? `Out of distribution: ${foreign.replace("ood/", "")}` : "Failures: right against wrong answers";
  const models = view.models().filter(([, model]) => {
    const run = view.run(model);
    return run.test && (!foreign || run.foreign[foreign]);
  });
  const { node, host } = figure(title);
  const curves = models.map(([, model]) => (foreign ? foreignRoc(view.run(model), foreign) : view.run(model).curve.roc()));
  let mark = () => {};
  responsive(host, (place, width) => {
    const c = chart(place, width, {
      height: Math.min(380, Math.max(260, width * 0.75)), x: [0, 1], y: [0, 1], percentX: true, percentY: true,
      xLabel: foreign ? "out-of-distribution inputs answered" : "wrong answers given", yLabel: foreign ? "test inputs answered" : "right answers given",
      label: `ROC curves of ${models.length} models for ${title}; AUROC is in the caption.`,
    });
    line(c, [[0, 0], [1, 1]], { class: "ideal" });
    models.forEach(([m], i) => curves[i] && line(c, curves[i], { class: colour(m), "stroke-dasharray": dash(m) }));
    const dots = models.map(([m]) => dot(c, 0, 0, { class: `marker ${colour(m)}`, r: 5 }));
    mark = () => models.forEach(([, model], i) => {
      const run = view.run(model);
      const at = operate(run, view.point);
      const good = run.curve.total - run.curve.errors;
      const x = foreign ? shareAbove(run.foreign[foreign].quantiles, at.threshold) : at.wrong / (run.curve.errors || 1);
      const y = foreign ? at.coverage : (at.answered - at.wrong) / (good || 1);
      set(dots[i], { cx: c.sx(x), cy: c.sy(y) });
    });
    mark();
  });
  view.follow(() => mark());
  const split = foreign ?? "test";
  const metric = foreign ? "ood_auroc" : "auroc";
  const parts = models.map(([, model]) => [model.label, model.metrics[split]?.[metric] ?? []]).filter(([, values]) => values.length);
  node.append(el("figcaption", { text: parts.length ? `AUROC: ${parts.map(([label, values]) => `${shorten(label, 40)} ${overSeeds(values, 2)}`).join("; ")}.` : "No AUROC was stored for this set." }));
  box.append(node);
}

function foreignRoc(run, name) {
  const quantiles = run.foreign[name].quantiles;
  const points = [[0, 0]];
  for (let j = quantiles.length - 1; j >= 0; j -= 4) {
    points.push([shareAbove(quantiles, quantiles[j]), run.curve.atThreshold(quantiles[j]).coverage]);
  }
  points.push([1, run.curve.atThreshold(quantiles[0]).coverage], [1, 1]);
  return points;
}
