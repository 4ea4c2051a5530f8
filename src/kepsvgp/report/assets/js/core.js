// Elements, formats, packed arrays and the state that all sections share.

const SVG = "http://www.w3.org/2000/svg";

function set(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") node.textContent = value;
    else if (name === "on") for (const [event, f] of Object.entries(value)) node.addEventListener(event, f);
    else node.setAttribute(name, value === true ? "" : value);
  }
  return node;
}

function el(tag, attributes = {}, ...children) {
  const node = set(document.createElement(tag), attributes);
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

function svg(tag, attributes = {}, ...children) {
  const node = set(document.createElementNS(SVG, tag), attributes);
  node.append(...children);
  return node;
}

const byId = (id) => document.getElementById(id);
const range = (n) => Array.from({ length: n }, (_, i) => i);
const sum = (values) => values.reduce((a, b) => a + b, 0);
const mean = (values) => (values.length ? sum(values) / values.length : NaN);

function deviation(values) {
  const m = mean(values);
  return values.length > 1 ? Math.sqrt(sum(values.map((v) => (v - m) ** 2)) / (values.length - 1)) : 0;
}

// bars of fewer examples than this are drawn faintly, and groups as single marks
const FEW = 10;

const percent = (value, digits = 1) => (Number.isFinite(value) ? `${(100 * value).toFixed(digits)}%` : "–");
const count = (value) => value.toLocaleString("en");

// "12.3%" for one seed, "12.3 ± 0.4%" for several
function overSeeds(values, digits = 1) {
  const known = values.filter(Number.isFinite);
  if (known.length < 2) return percent(known.length ? known[0] : NaN, digits);
  return `${(100 * mean(known)).toFixed(digits)} ± ${(100 * deviation(known)).toFixed(digits)}%`;
}

function metricText(metric, value, unit = true) {
  if (!Number.isFinite(value)) return "–";
  return metric.percent ? (100 * value).toFixed(2) + (unit ? "%" : "") : value.toFixed(4);
}

const ARRAYS = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, f4: Float32Array };

function unpack(packed) {
  if (!packed) return null;
  const text = atob(packed.data);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return new ARRAYS[packed.type](bytes.buffer);
}

function unpackShare(packed, scale) {
  return Float32Array.from(unpack(packed), (v) => (v / 65535) * scale);
}

// 95% score interval for k of n, as in the Python code
function wilson(k, n) {
  if (n === 0) return [0, 1];
  const z = 1.959963984540054;
  const p = k / n;
  const centre = (p + (z * z) / (2 * n)) / (1 + (z * z) / n);
  const radius = (z * Math.sqrt((p * (1 - p)) / n + (z * z) / (4 * n * n))) / (1 + (z * z) / n);
  return [Math.max(0, centre - radius), Math.min(1, centre + radius)];
}

const PALETTE = 8;
const DASHES = ["", "7 3", "2 3", "10 3 2 3", "4 2", "1 3", "12 4", "6 2 1 2"];
const colour = (m) => `m${m % PALETTE}`;
// each round of colours begins with another dash, so that no two of 64 models look the same
const dash = (m) => DASHES[(m + Math.floor(m / PALETTE)) % DASHES.length];

function swatch(m) {
  return svg(
    "svg",
    { class: `swatch ${colour(m)}`, viewBox: "0 0 28 10", "aria-hidden": "true" },
    svg("line", { x1: 1, x2: 27, y1: 5, y2: 5, class: "curve", "stroke-dasharray": dash(m) }),
  );
}

function modelName(model, m) {
  return el("span", { class: "model-name" }, swatch(m), el("span", { text: model.label, title: model.label }));
}

// Which line is which model.
function modelKey(view) {
  const entries = view.models().map(([m, model]) => modelName(model, m));
  return el("p", { class: "key" }, ...(entries.length > 1 ? entries : []));
}

// A table that copies as text: a caption, headings, and cells of plain text.
function table(caption, headings, rows, className = "") {
  const head = el("tr", {}, ...headings.map((h) => el("th", { scope: "col", text: h })));
  const cell = (value, i) => {
    const tag = i === 0 ? "th" : "td";
    const attributes = i === 0 ? { scope: "row" } : {};
    return value instanceof Node ? el(tag, attributes, value) : el(tag, { ...attributes, text: value });
  };
  const body = rows.map((row) => el("tr", {}, ...row.map(cell)));
  return el(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el("table", { class: className }, el("caption", { text: caption }), el("thead", {}, head), el("tbody", {}, ...body)),
  );
}

// The numbers behind a picture, made when somebody opens them.
function numbers(title, make) {
  const details = el("details", { class: "numbers" }, el("summary", { text: `Numbers: ${title}` }));
  details.addEventListener("toggle", () => {
    if (details.open && details.children.length === 1) details.append(make());
  });
  return details;
}

function select(label, options, value, onChange) {
  const control = el(
    "select",
    { on: { change: () => onChange(control.value) } },
    ...options.map(([key, text]) => el("option", { value: key, text: shorten(text, 60) })),
  );
  control.value = value;
  return el("label", { class: "field" }, el("span", { text: label }), control);
}

function shorten(text, length) {
  const letters = Array.from(text);
  return letters.length > length ? `${letters.slice(0, length - 1).join("")}…` : text;
}

// Redraws when the width changes; `draw` receives the host emptied and its width.
function responsive(host, draw) {
  let width = 0;
  const redraw = () => {
    width = host.clientWidth;
    if (width > 0) {
      host.replaceChildren();
      draw(host, width);
    }
  };
  new ResizeObserver(() => {
    if (host.isConnected && Math.abs(host.clientWidth - width) > 1) redraw();
  }).observe(host);
  redraw();
  return redraw;
}
