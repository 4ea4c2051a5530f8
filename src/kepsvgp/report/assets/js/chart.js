// Small charts in SVG: axes, curves, steps, bars and whiskers. Sizes are in CSS pixels.

function ticks(low, high, wanted) {
  const raw = (high - low) / Math.max(1, wanted);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((s) => s * power).find((s) => s >= raw * 0.999);
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return range(last - first + 1).map((i) => (first + i) * step);
}

function tickText(values) {
  const step = values.length > 1 ? Math.abs(values[1] - values[0]) : Math.abs(values[0]) || 1;
  const largest = Math.max(...values.map(Math.abs));
  if (largest >= 1e5 || (largest > 0 && largest < 1e-3)) return (v) => (v === 0 ? "0" : v.toExponential(0));
  const digits = Math.max(0, Math.min(6, -Math.floor(Math.log10(step) + 1e-9)));
  const needs = Math.abs(step * 10 ** digits - Math.round(step * 10 ** digits)) > 1e-6 ? 1 : 0;
  return (v) => v.toFixed(digits + needs);
}

// options: height, x, y ([low, high]), xLabel, yLabel, percentX, percentY, label, logY
function chart(host, width, options) {
  const left = options.left ?? (options.yLabel ? 58 : 46);
  const right = 12;
  const top = options.top ?? 10;
  const bottom = options.xLabel ? 40 : 24;
  const height = options.height;
  const [x0, x1] = options.x;
  let [y0, y1] = options.y;
  if (y0 === y1) y1 = y0 + 1;
  const transform = options.logY ? Math.log10 : (v) => v;
  const sx = (v) => left + ((v - x0) / (x1 - x0 || 1)) * (width - left - right);
  const sy = (v) => height - bottom - ((transform(v) - transform(y0)) / (transform(y1) - transform(y0))) * (height - top - bottom);
  const root = svg("svg", {
    viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": options.label, class: "chart",
  });
  const axes = svg("g", { class: "axes", "aria-hidden": "true" });
  const xs = options.xTicks ?? ticks(x0, x1, Math.max(2, Math.min(10, (width - left) / 62)));
  const ys = options.logY ? logTicks(y0, y1) : ticks(y0, y1, Math.max(2, Math.min(6, height / 45)));
  const xText = options.percentX ? (v) => `${Math.round(100 * v)}%` : options.xText ?? tickText(xs);
  const yText = options.percentY ? percentTick(ys) : options.logY ? (v) => tickText([v])(v) : tickText(ys);
  for (const v of ys) {
    axes.append(svg("line", { class: "grid", x1: left, x2: width - right, y1: sy(v), y2: sy(v) }));
    axes.append(svg("text", { x: left - 7, y: sy(v) + 4, "text-anchor": "end", text: yText(v) }));
  }
  for (const v of xs) {
    axes.append(svg("text", { x: sx(v), y: height - bottom + 16, "text-anchor": "middle", text: xText(v) }));
  }
  axes.append(svg("line", { class: "base", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }));
  if (options.xLabel) {
    axes.append(svg("text", { class: "axis", x: (left + width - right) / 2, y: height - 5, "text-anchor": "middle", text: options.xLabel }));
  }
  if (options.yLabel) {
    const y = top + (height - top - bottom) / 2;
    axes.append(svg("text", { class: "axis", transform: `translate(11 ${y}) rotate(-90)`, "text-anchor": "middle", text: options.yLabel }));
  }
  root.append(axes);
  host.append(root);
  return { root, sx, sy, left, right, top, bottom, width, height, x0, x1, y0, y1 };
}

function percentTick(values) {
  const step = values.length > 1 ? values[1] - values[0] : 1;
  const digits = step * 100 < 0.999 ? (step * 100 < 0.0999 ? 2 : 1) : Math.abs((step * 100) % 1) > 1e-6 ? 1 : 0;
  return (v) => `${(100 * v).toFixed(digits)}%`;
}

function logTicks(low, high) {
  const first = Math.ceil(Math.log10(low) - 1e-9);
  const last = Math.floor(Math.log10(high) + 1e-9);
  return range(Math.max(1, last - first + 1)).map((i) => 10 ** (first + i));
}

function line(c, points, attributes = {}) {
  const known = points.filter(([x, y]) => Number.isFinite(x) && Number.isFinite(y));
  const path = known.map(([x, y], i) => `${i ? "L" : "M"}${c.sx(x).toFixed(1)} ${c.sy(y).toFixed(1)}`).join("");
  const node = svg("path", { d: path || "M0 0", fill: "none", ...attributes, class: `curve ${attributes.class ?? ""}` });
  c.root.append(node);
  return node;
}

function rect(c, x0, x1, y0, y1, attributes) {
  const node = svg("rect", {
    x: c.sx(x0), y: c.sy(Math.max(y0, y1)),
    width: Math.max(0.5, c.sx(x1) - c.sx(x0)), height: Math.max(0, Math.abs(c.sy(y0) - c.sy(y1))), ...attributes,
  });
  c.root.append(node);
  return node;
}

function whisker(c, x, low, high, attributes = {}) {
  const px = c.sx(x);
  const [a, b] = [c.sy(low), c.sy(high)];
  c.root.append(svg("path", {
    d: `M${px} ${a}V${b}M${px - 3} ${a}h6M${px - 3} ${b}h6`, ...attributes, class: `whisker ${attributes.class ?? ""}`,
  }));
}

function dot(c, x, y, attributes = {}) {
  const node = svg("circle", { cx: c.sx(x), cy: c.sy(y), r: 4, ...attributes });
  c.root.append(node);
  return node;
}

// A tooltip for pictures: a native title, which screen readers skip inside role=img.
function told(node, text) {
  node.append(svg("title", { text }));
  return node;
}

// A figure with a heading, the picture's place and a caption.
function figure(title, caption = null, className = "") {
  const host = el("div", { class: "plot" });
  const heading = title instanceof Node ? title : el("span", { text: title });
  const node = el(
    "figure",
    { class: `figure ${className}` },
    el("h3", {}, heading),
    host,
    caption ? el("figcaption", { text: caption }) : null,
  );
  return { node, host };
}
