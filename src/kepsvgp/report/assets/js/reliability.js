// Reliability: does a stated confidence come true as often as it says?

function reliabilitySection(mount, view) {
  const grid = el("div", { class: "grid" });
  for (const [m, model] of view.models()) {
    const run = view.run(model);
    if (!run.test) continue;
    const ece = model.metrics.test?.ece?.[model.runs.indexOf(run)];
    const bins = run.test.reliability;
    const { node, host } = figure(modelName(model, m));
    responsive(host, (place, width) => drawReliability(place, width, bins, m, model.label));
    const says = mean(Array.from(run.test.confidence));
    const right = mean(Array.from(run.test.correct));
    const gap = Math.abs(says - right);
    const side = gap < 0.0005 ? "no difference" : `${says > right ? "over" : "under"}-confident by ${percent(gap)}`;
    node.append(
      el("figcaption", {
        text: `Says ${percent(says)} on average, is right ${percent(right)} of the time: ${side}.` +
          (Number.isFinite(ece) ? ` ECE ${percent(ece, 2)}.` : ""),
      }),
      numbers(`reliability of ${shorten(model.label, 40)}`, () => reliabilityTable(model, bins)),
    );
    grid.append(node);
  }
  mount.append(grid);
}

function drawReliability(host, width, bins, m, label) {
  const height = Math.min(320, Math.max(220, width * 0.72));
  const filled = range(bins.count.length).filter((b) => bins.count[b] > 0);
  const c = chart(host, width, {
    height, x: [0, 1], y: [0, 1], percentX: true, percentY: true, yLabel: "right",
    label: `Reliability diagram of ${label}: accuracy in ${filled.length} filled bins of confidence; the numbers are in the table below.`,
  });
  const patterns = ["above", "within"].map((kind) => stripes(c, kind, `${kind}-${m}`));
  const most = Math.max(...bins.count);
  for (const b of filled) {
    const [from, to] = [bins.edges[b], bins.edges[b + 1]];
    const inset = 0.004;
    const few = bins.count[b] < FEW ? "few" : "";
    rect(c, from + inset, to - inset, 0, bins.accuracy[b], { class: `bar ${colour(m)} ${few}` });
    // stripes: the gap between what is said (the dark line) and what comes true
    const pattern = patterns[bins.confidence[b] > bins.accuracy[b] ? 0 : 1];
    if (!few) rect(c, from + inset, to - inset, bins.accuracy[b], bins.confidence[b], { fill: `url(#${pattern})` });
    const y = c.sy(bins.confidence[b]);
    c.root.append(svg("line", { class: `said ${few}`, x1: c.sx(from + inset), x2: c.sx(to - inset), y1: y, y2: y }));
    whisker(c, (from + to) / 2, bins.low[b], bins.high[b], { class: few });
  }
  line(c, [[0, 0], [1, 1]], { class: "ideal" });
  const counts = chart(host, width, {
    height: 84, x: [0, 1], y: [0, most], percentX: true, xLabel: "confidence", yLabel: "examples",
    label: `Number of test examples in each bin of confidence for ${label}; the fullest has ${count(most)}.`,
  });
  for (const b of filled) {
    const bar = rect(counts, bins.edges[b] + 0.004, bins.edges[b + 1] - 0.004, 0, bins.count[b], { class: "bar quiet" });
    told(bar, `${count(bins.count[b])} examples with confidence ${percent(bins.edges[b], 0)} to ${percent(bins.edges[b + 1], 0)}`);
  }
}

function stripes(c, kind, id) {
  c.root.append(svg("defs", {}, svg(
    "pattern",
    { id, class: `stripes ${kind}`, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    svg("path", { d: "M0 0V6" }),
  )));
  return id;
}

function reliabilityTable(model, bins) {
  const rows = range(bins.count.length).filter((b) => bins.count[b] > 0).map((b) => [
    `${percent(bins.edges[b])} – ${percent(bins.edges[b + 1])}`,
    count(bins.count[b]),
    percent(bins.confidence[b], 2),
    percent(bins.accuracy[b], 2),
    `${percent(bins.low[b])} – ${percent(bins.high[b])}`,
  ]);
  return table(`Reliability of ${model.label}`, ["Bin", "Examples", "Says", "Is right", "95% interval"], rows, "plain");
}
