// Novelty: how foreign inputs are, whom an accepted share of false alarms takes for foreign, and
// what confidence alone would have answered. Novelties are shown on the scale of asinh.

const MOST_ALARMS = 20;

// The novelty from which on an input has a p-value of at most this.
function noveltyLimit(run, alarms) {
  const { p, novelty } = run.alarms;
  let limit = Infinity;
  // p-values are in single precision
  for (let i = 0; i < p.length && p[i] <= Math.fround(alarms); i++) limit = Math.min(limit, novelty[i]);
  return limit;
}

const shareOf = (total, keep) => (total ? range(total).filter(keep).length / total : NaN);

function noveltySection(mount, view) {
  const models = view.models().filter(([, model]) => view.run(model).alarms);
  if (!models.length) return false;
  const choice = view.kept("novelty", { alarms: 0.05, model: "0" });
  const grid = el("div", { class: "grid" });
  const holder = el("div", { class: "below" });
  const foreign = view.foreign();
  const groups = [["correct", "test set"], ...(foreign ? [["foreign", foreign.replace("ood/", "")]] : [])];
  mount.append(alarmSlider(view, choice), key(groups), grid, holder);
  for (const [m, model] of models) grid.append(noveltyFigure(view, m, model, foreign, choice));
  const hint = el("p", { class: "hint", text: "By novelty only: so confident that the slider of the page would have them answered." });
  view.follow(() => holder.replaceChildren(alarmTable(view, models, choice.alarms), hint));
  if (foreign) caughtList(mount, view, models, foreign, choice);
  return true;
}

function alarmSlider(view, choice) {
  const limits = { min: 0, max: MOST_ALARMS, step: 0.5, "aria-label": "Accepted false alarms in percent" };
  const slider = el("input", { type: "range", id: "alarms", ...limits });
  const field = el("input", { type: "number", id: "alarms-value", inputmode: "decimal", ...limits });
  const show = () => { slider.value = field.value = 100 * choice.alarms; };
  const change = (input) => {
    if (input.value === "" || !Number.isFinite(Number(input.value))) return;
    choice.alarms = Math.min(MOST_ALARMS, Math.max(0, Number(input.value))) / 100;
    (input === slider ? field : slider).value = 100 * choice.alarms;
    view.moved();
  };
  for (const input of [slider, field]) input.addEventListener("input", () => change(input));
  field.addEventListener("blur", show);
  show();
  return el("div", { class: "controls" }, el("span", { text: "Accept false alarms up to" }),
    el("div", { class: "slide" }, slider, el("span", { class: "unit" }, field, el("span", { text: "%" }))));
}

function noveltyFigure(view, m, model, foreign, choice) {
  const run = view.run(model);
  const sets = [["test set", "correct", run.test.novelty]];
  if (foreign && run.foreign[foreign]?.novel) sets.push([foreign.replace("ood/", ""), "foreign", run.foreign[foreign].novel.novelty]);
  const scaled = sets.map(([, , values]) => Float64Array.from(values, Math.asinh));
  const extreme = (pick) => scaled.map((values) => values.reduce((a, b) => pick(a, b))).reduce((a, b) => pick(a, b));
  const [low, high] = [extreme(Math.min), extreme(Math.max)];
  const place = (v) => (v - low) / (high - low || 1);
  const histograms = scaled.map((values) => histogram(values.map(place), () => true));
  const all = [-1, 1].flatMap((sign) => [0, 3, 10, 30, 100, 300, 1e3, 1e4, 1e5].map((v) => sign * v));
  const xTicks = [...new Set(all.map((v) => place(Math.asinh(v))))].filter((v) => v >= 0 && v <= 1);
  const value = (b) => Math.sinh(low + (b / BINS) * (high - low));
  const { node, host } = figure(modelName(model, m));
  let guide = () => {};
  const mark = () => guide(place(Math.asinh(noveltyLimit(run, choice.alarms))));
  responsive(host, (where, width) => {
    guide = drawGroups(where, width, sets.map(([, kind], i) => [kind, histograms[i]]), {
      xLabel: "novelty", xTicks, xText: (v) => String(Math.round(Math.sinh(low + v * (high - low)))),
      label: `Histogram of the novelty that ${model.label} finds in known and foreign inputs; the numbers are in the table below.`,
    });
    mark();
  });
  view.follow(mark);
  node.append(
    el("figcaption", { text: "Each group is scaled to 100%. Right of the dashed line inputs are taken for foreign." }),
    numbers(`novelty of ${shorten(model.label, 40)}`, () => table(`Shares of novelty, ${model.label}`,
      ["Novelty", ...sets.map(([name]) => name)],
      range(BINS).map((b) => [`${value(b).toFixed(2)} – ${value(b + 1).toFixed(2)}`, ...histograms.map((h) => percent(h.shares[b]))]), "plain")),
  );
  return node;
}

function alarmTable(view, models, alarms) {
  const { bench } = view;
  const names = bench.foreignNames.filter((name) => models.some(([, model]) => model.runs.some((run) => run.foreign[name]?.novel)));
  const rows = models.map(([m, model]) => {
    const runs = model.runs.filter((run) => run.alarms);
    const falls = (run) => shareOf(run.test.novelty.length, (i) => run.test.novelty[i] >= noveltyLimit(run, alarms));
    const [low, high] = wilson(falls(runs[0]) * bench.total, bench.total);
    const interval = runs.length === 1 ? ` (${percent(low)} – ${percent(high)})` : "";
    const caught = (name, keep) => overSeeds(runs.filter((run) => run.foreign[name]?.novel).map((run) => {
      const { novelty, confidence } = run.foreign[name].novel;
      const limit = noveltyLimit(run, alarms);
      return shareOf(novelty.length, (i) => novelty[i] >= limit && keep(run, confidence[i]));
    }));
    return [modelName(model, m), overSeeds(runs.map(falls)) + interval, ...names.flatMap((name) =>
      [caught(name, () => true), caught(name, (run, confidence) => confidence >= operate(run, view.point).threshold)])];
  });
  const headings = ["Model", "False alarms, test set", ...names.flatMap((name) => {
    const title = `${name.replace("ood/", "")} (${bench.distance[name]})`;
    return [`${title} noticed`, `${title} noticed by novelty only`];
  })];
  const node = table(`Taken for foreign at ${percent(alarms)} accepted false alarms`, headings, rows);
  node.id = "alarm-table";
  return node;
}

// Foreign inputs that the confidence of the slider would answer.
function caughtList(mount, view, models, foreign, choice) {
  const heading = el("h3", { id: "caught-count", "aria-live": "polite" });
  const holder = el("div", { id: "caught" });
  const list = new PagedList(holder, "None of those in the page: what is confident here is not taken for foreign, or the other way round.");
  const draw = () => {
    const run = view.run(view.bench.models[Number(choice.model)]);
    const top = run.foreign[foreign]?.top;
    const threshold = operate(run, view.point).threshold;
    const places = top?.p ? range(top.p.length)
      .filter((place) => top.p[place] <= Math.fround(choice.alarms) && top.probs[place * top.count] >= threshold)
      .sort((a, b) => top.probs[b * top.count] - top.probs[a * top.count]) : [];
    heading.textContent = `${count(places.length)} inputs of ${foreign.replace("ood/", "")} in the page that only novelty noticed, the most confident first`;
    list.show(places, (place) => foreignTile(view, run, foreign, place), `${choice.model} ${foreign}`);
  };
  const options = models.map(([m, model]) => [String(m), model.label]);
  if (!options.some(([m]) => m === choice.model)) choice.model = options[0][0];
  mount.append(el("div", { class: "fields" }, select("Model", options, choice.model, (value) => { choice.model = value; draw(); })), heading, holder);
  view.follow(draw);
}
