// Inside the models: spectra of the attention kernels, and how training went.

function runKey(runs) {
  const names = new Map(runs.map((run) => [run.model, run]));
  const entries = [...names].map(([m, run]) => modelName(run, m));
  return el("p", { class: "key" }, ...(entries.length > 1 ? entries : []));
}

function kernelSection(mount, view) {
  const runs = view.trainings().filter((run) => run.spectra && run.leads);
  if (!runs.length) return false;
  const layers = Math.max(...runs.map((run) => run.spectra.layers.length));
  const grid = el("div", { class: "grid" });
  mount.append(runKey(runs), grid);
  for (const index of range(layers)) {
    const present = runs.filter((run) => run.spectra.layers[index]);
    const name = present[0].spectra.layers[index].name;
    const { node, host } = figure(`Layer ${index + 1}: cumulative singular values`);
    responsive(host, (place, width) => drawSpectrum(place, width, present, index));
    const told = present.filter((run) => run.spectra.layers[index].rank).map((run) => {
      const layer = run.spectra.layers[index];
      const share = layer.explained ?? layer.cumulative[Math.min(layer.rank, layer.cumulative.length) - 1];
      const word = layer.activity ? `, ${layer.activity.word}` : "";
      return `${shorten(run.label, 40)}${word}: the first ${layer.rank} explain ${percent(share)}`;
    });
    node.append(
      el("figcaption", { text: `${name}, ${count(present[0].spectra.examples)} examples. ${told.length ? `${told.join("; ")}.` : ""}` }),
      numbers(`spectrum of layer ${index + 1}`, () => spectrumTable(present, index)),
    );
    const judged = present.filter((run) => run.spectra.layers[index].activity);
    if (judged.length) node.append(activityTable(judged, index));
    grid.append(node);
    const learnt = present.filter((run) => run.spectra.layers[index].alignment);
    if (learnt.length) grid.append(alignmentFigure(learnt, index));
    const findings = present.flatMap((run) => run.spectra.layers[index].findings.map((text) => `${shorten(run.label, 40)}: ${text}`));
    if (findings.length) node.append(el("ul", { class: "findings" }, ...findings.map((text) => el("li", { text }))));
  }
  return true;
}

function drawSpectrum(host, width, runs, index) {
  const most = Math.max(...runs.map((run) => run.spectra.layers[index].cumulative.length));
  const lowest = Math.min(...runs.map((run) => run.spectra.layers[index].cumulative[0]));
  const c = chart(host, width, {
    height: 260, x: [1, Math.max(2, most)], y: [Math.max(0, Math.floor(lowest * 10) / 10), 1], percentY: true, xLabel: "singular value index", yLabel: "share of the sum",
    label: `Normalised cumulative singular values of layer ${index + 1} for ${runs.length} runs; the numbers are in the table below.`,
  });
  for (const run of runs) {
    const layer = run.spectra.layers[index];
    line(c, layer.cumulative.map((y, i) => [i + 1, y]), { class: colour(run.model), "stroke-dasharray": dash(run.model) });
    if (layer.rank && layer.rank <= layer.cumulative.length) dot(c, layer.rank, layer.cumulative[layer.rank - 1], { class: `marker ${colour(run.model)}`, r: 5 });
  }
}

function spectrumTable(runs, index) {
  const most = Math.max(...runs.map((run) => run.spectra.layers[index].cumulative.length));
  const rows = range(most).map((i) => [String(i + 1), ...runs.map((run) => percent(run.spectra.layers[index].cumulative[i], 2))]);
  return table(`Cumulative singular values of layer ${index + 1}`, ["Index", ...runs.map((run) => run.label)], rows, "plain");
}

function activityTable(runs, index) {
  const rows = runs.map((run) => {
    const { activity, posterior } = run.spectra.layers[index];
    const sizes = [activity.epistemic, activity.allowed, activity.prior, mean(posterior?.scores ?? [])];
    return [run.label, activity.word, activity.effective_dimension.toFixed(1), ...sizes.map((value) => value.toExponential(1))];
  });
  const heads = ["Run", "Layer is", "d_eff", "Draws disagree, nats", "Honest: d_eff / 2N", "Prior's draws", "Size of scores"];
  return table(`What the draws of layer ${index + 1} do`, heads, rows, "plain");
}

function alignmentFigure(runs, index) {
  const { node, host } = figure(`Layer ${index + 1}: learnt against exact directions`);
  responsive(host, (place, width) => {
    const most = Math.max(...runs.map((run) => run.spectra.layers[index].alignment.left.length));
    const c = chart(place, width, {
      height: 260, x: [1, Math.max(2, most)], y: [0, 1], xLabel: "kept pair", yLabel: "|cosine|",
      label: `Cosine between learnt and exact singular directions of layer ${index + 1}; the numbers are in the table below.`,
    });
    for (const run of runs) {
      const { left, right } = run.spectra.layers[index].alignment;
      left.forEach((y, i) => dot(c, i + 1, y, { class: `point ${colour(run.model)}`, r: 4 }));
      right.forEach((y, i) => dot(c, i + 1, y, { class: `ring ${colour(run.model)}`, r: 4 }));
      line(c, left.map((y, i) => [i + 1, y]), { class: `${colour(run.model)} faint` });
      line(c, right.map((y, i) => [i + 1, y]), { class: `${colour(run.model)} faint` });
    }
  });
  const spans = runs.filter((run) => run.spectra.layers[index].overlap).map((run) => {
    const { overlap, chance } = run.spectra.layers[index];
    const random = chance ? ` (random ones ${percent(chance.left, 0)} and ${percent(chance.right, 0)})` : "";
    return ` ${shorten(run.label, 40)} spans ${percent(overlap.left, 0)} and ${percent(overlap.right, 0)} of the exact directions${random}.`;
  });
  node.append(
    el("figcaption", { text: `1 is the same direction. Filled: left (queries); hollow: right (keys).${spans.join("")}` }),
    numbers(`alignment of layer ${index + 1}`, () => table(`Alignment of layer ${index + 1}`, ["Run and side", "|cosine| of each kept pair"],
      runs.flatMap((run) => ["left", "right"].map((side) => [`${run.label}, ${side}`, run.spectra.layers[index].alignment[side].map((v) => v.toFixed(3)).join("  ")])), "plain")),
  );
  return node;
}

function trainingSection(mount, view) {
  const runs = view.trainings().filter((run) => run.history && run.history.epoch.length);
  if (!runs.length) return false;
  const grid = el("div", { class: "grid" });
  mount.append(runKey(runs), grid);
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.history.series)))];
  for (const name of names) {
    const present = runs.filter((run) => run.history.series[name]?.some(Number.isFinite));
    if (!present.length) continue;
    const { node, host } = figure(present[0].history.titles[name] ?? name);
    responsive(host, (place, width) => drawTraining(place, width, present, name));
    node.append(numbers(present[0].history.titles[name], () => trainingTable(present, name)));
    grid.append(node);
  }
  return true;
}

function drawTraining(host, width, runs, name) {
  const values = runs.flatMap((run) => run.history.series[name]).filter(Number.isFinite);
  let [low, high] = [Math.min(...values), Math.max(...values)];
  const logY = low > 0 && high / low > 50;
  if (logY) [low, high] = [10 ** Math.floor(Math.log10(low)), 10 ** Math.ceil(Math.log10(high))];
  else {
    const room = (high - low || Math.abs(high) || 1) * 0.06;
    low = low >= 0 && low - room < 0 ? 0 : low - room;
    high += room;
  }
  const last = Math.max(...runs.map((run) => run.history.epoch.at(-1)));
  const first = Math.min(...runs.map((run) => run.history.epoch[0]));
  const epochs = [first, Math.max(first + 1, last)];
  const c = chart(host, width, {
    height: 210, x: epochs, xTicks: ticks(...epochs, 6).filter(Number.isInteger), y: [low, high], logY, xLabel: "epoch",
    label: `${name} over epochs for ${runs.length} runs; the numbers are in the table below.`,
  });
  for (const run of runs) {
    const points = run.history.epoch.map((epoch, i) => [epoch, run.history.series[name][i]]);
    line(c, points, { class: `${colour(run.model)} ${run.leads ? "" : "faint"}`, "stroke-dasharray": dash(run.model) });
    if (points.length === 1) dot(c, points[0][0], points[0][1], { class: `point ${colour(run.model)}` });
  }
}

function trainingTable(runs, name) {
  const epochs = [...new Set(runs.flatMap((run) => run.history.epoch))].sort((a, b) => a - b);
  const at = (run, epoch) => run.history.series[name][run.history.epoch.indexOf(epoch)];
  const text = (value) => (Number.isFinite(value) ? String(Number(value.toPrecision(5))) : "–");
  return table(name, ["Epoch", ...runs.map((run) => `${run.label}, seed ${run.seed}`)], epochs.map((epoch) => [String(epoch), ...runs.map((run) => text(at(run, epoch)))]), "plain");
}
