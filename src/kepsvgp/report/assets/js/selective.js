// Risk and coverage. An example is answered when its confidence is at least the threshold.

class RiskCoverage {
  constructor(confidence, correct) {
    const n = confidence.length;
    this.total = n;
    this.order = Uint32Array.from(range(n)).sort((a, b) => confidence[b] - confidence[a] || a - b);
    this.ranked = Float32Array.from(this.order, (i) => confidence[i]);
    this.wrong = new Uint32Array(n + 1);
    for (let k = 0; k < n; k++) this.wrong[k + 1] = this.wrong[k] + (correct[this.order[k]] ? 0 : 1);
    // numbers answered at the distinct thresholds: equal confidences are answered together
    this.steps = range(n).filter((k) => k === n - 1 || this.ranked[k] !== this.ranked[k + 1]).map((k) => k + 1);
  }

  get errors() {
    return this.wrong[this.total];
  }

  point(answered) {
    const wrong = this.wrong[answered];
    return {
      answered,
      wrong,
      threshold: answered ? this.ranked[answered - 1] : Infinity,
      coverage: this.total ? answered / this.total : 0,
      risk: answered ? wrong / answered : NaN,
    };
  }

  // the strictest threshold that answers at least this share
  atCoverage(share) {
    const wanted = share * this.total - 1e-9;
    let low = 0;
    let high = this.steps.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.steps[middle] >= wanted) high = middle;
      else low = middle + 1;
    }
    return this.point(this.steps[low]);
  }

  // the laxest threshold whose risk is at most this; answers nothing where there is none
  atRisk(risk) {
    for (let i = this.steps.length - 1; i >= 0; i--) {
      const step = this.steps[i];
      if (this.wrong[step] / step <= risk) return this.point(step);
    }
    return this.point(0);
  }

  atThreshold(threshold) {
    let low = 0;
    let high = this.total;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.ranked[middle] >= threshold) low = middle + 1;
      else high = middle;
    }
    return this.point(low);
  }

  // [coverage, risk] at about `size` of the steps, for drawing
  curve(size = 400) {
    const every = Math.max(1, Math.floor(this.steps.length / size));
    const kept = this.steps.filter((_, i) => i % every === 0 || i === this.steps.length - 1);
    return kept.map((step) => [step / this.total, this.wrong[step] / step]);
  }

  // [share of wrong answers kept, share of right answers kept]
  roc(size = 400) {
    const right = this.total - this.errors;
    if (!right || !this.errors) return null;
    const every = Math.max(1, Math.floor(this.steps.length / size));
    const kept = this.steps.filter((_, i) => i % every === 0 || i === this.steps.length - 1);
    return [[0, 0], ...kept.map((step) => [this.wrong[step] / this.errors, (step - this.wrong[step]) / right])];
  }
}

// share of a sorted (rising) list of quantiles that is at least the threshold
function shareAbove(quantiles, threshold) {
  let low = 0;
  let high = quantiles.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (quantiles[middle] >= threshold) high = middle;
    else low = middle + 1;
  }
  return (quantiles.length - low) / quantiles.length;
}

// What every section knows about a run, unpacked once.
function openRun(run, bench) {
  const test = run.test;
  if (!test) return { ...run, test: null, foreign: {} };
  const confidence = unpack(test.confidence);
  const predicted = unpack(test.predicted);
  const correct = Uint8Array.from(predicted, (p, i) => (p === bench.labels[i] ? 1 : 0));
  const entropy = unpackShare(test.entropy, bench.entropyScale);
  const aleatoric = unpackShare(test.aleatoric, bench.entropyScale);
  const foreign = {};
  for (const [name, set] of Object.entries(run.foreign)) {
    foreign[name] = {
      ...set,
      quantiles: unpack(set.quantiles),
      entropy: unpackShare(set.entropy, bench.entropyScale),
      aleatoric: unpackShare(set.aleatoric, bench.entropyScale),
      top: openTop(set.top),
      novel: set.novel && { novelty: unpack(set.novel.novelty), confidence: unpack(set.novel.confidence) },
    };
  }
  const val = run.val && new RiskCoverage(unpack(run.val.confidence), unpack(run.val.correct));
  return {
    ...run,
    foreign,
    val,
    alarms: run.alarms && { p: unpack(run.alarms.p), novelty: unpack(run.alarms.novelty) },
    curve: new RiskCoverage(confidence, correct),
    test: { ...test, confidence, predicted, correct, entropy, aleatoric, novelty: unpack(test.novelty), top: openTop(test.top) },
  };
}

function openTop(top) {
  return top && { count: top.count, classes: unpack(top.classes), probs: unpackShare(top.probs, 1), p: unpack(top.p) };
}

function openBench(bench) {
  const open = { ...bench, labels: unpack(bench.labels), positions: unpack(bench.positions) };
  open.models = bench.models.map((model) => ({ ...model, runs: model.runs.map((run) => openRun(run, open)) }));
  open.foreignNames = [...new Set(open.models.flatMap((m) => m.runs.flatMap((r) => Object.keys(r.foreign))))];
  open.place = new Map((bench.shown?.positions ?? []).map((position, i) => [position, i]));
  open.total = open.labels ? open.labels.length : 0;
  return open;
}

// Where a run stands at the wanted coverage or accepted risk; asked by many, found once.
function operate(run, point) {
  if (!run.test) return null;
  const key = `${point.mode} ${point.value} ${point.source}`;
  if (run.stands?.key !== key) run.stands = { key, at: find(run, point) };
  return run.stands.at;
}

function find(run, point) {
  if (point.mode === "coverage") return run.curve.atCoverage(point.value);
  if (point.source === "val" && run.val) return run.curve.atThreshold(run.val.atRisk(point.value).threshold);
  return run.curve.atRisk(point.value);
}
