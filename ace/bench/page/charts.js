"use strict";
// Charts as SVG, drawn anew whenever something is switched. Text is only ever set as text content,
// so that a name with markup in it stays a name.

const SVG = "http://www.w3.org/2000/svg";

function make(tag, attributes, ...children) {
  const node = document.createElement(tag);
  return fill(node, attributes, children);
}

function draw(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// `unit` is the largest possible value; null where that is not known.
function digits(value, unit) {
  if (unit === null) return Math.abs(value) < 1e5 ? String(+value.toPrecision(4)) : value.toExponential(1);
  if (unit <= 1) return value.toFixed(2);
  return Math.abs(value) >= 10 ? value.toFixed(0) : value.toFixed(1);
}

function steps(value) {
  if (value >= 1e6) return +(value / 1e6).toFixed(2) + "M";
  return value >= 1e3 ? +(value / 1e3).toFixed(1) + "k" : String(+value.toFixed(2));
}

function duration(seconds) {
  if (seconds < 90) return seconds.toFixed(0) + " s";
  return seconds < 5400 ? (seconds / 60).toFixed(0) + " min" : (seconds / 3600).toFixed(1) + " h";
}

function span(found, unit) {
  if (found.low === null || found.low === undefined) return digits(found.value, unit);
  return `${digits(found.value, unit)} (${digits(found.low, unit)}, ${digits(found.high, unit)})`;
}

// Round tick positions that cover [low, high].
function ticks(low, high, count) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const size = [1, 2, 2.5, 5, 10].map((x) => x * power).find((x) => x >= rough * 0.999);
  const found = [];
  for (let at = Math.ceil(low / size - 1e-9); at * size <= high + size * 1e-9; at++) found.push(at * size);
  return found;
}

// Ticks of a time axis at whole minutes or hours.
function timeTicks(high) {
  const sizes = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400];
  const size = sizes.find((x) => high / x <= 6) || Math.ceil(high / 6 / 86400) * 86400;
  const found = [];
  for (let at = 0; at <= high * 1.001; at += size) found.push(at);
  return found;
}

function timeLabel(seconds) {
  if (seconds === 0) return "0";
  if (seconds < 60) return seconds + " s";
  return seconds < 5400 ? +(seconds / 60).toFixed(1) + " min" : +(seconds / 3600).toFixed(2) + " h";
}

function swatch(style) {
  const line = draw("line", { x1: 1, x2: 19, y1: 5, y2: 5, "stroke-width": 3, "stroke-dasharray": style.dash, style: `stroke:${style.colour}` });
  return draw("svg", { viewBox: "0 0 20 10", width: 20, height: 10, style: "width:20px;flex:none", "aria-hidden": "true" }, line);
}

const tip = {
  node: null,
  show(event, parts) {
    this.node = this.node || document.getElementById("tip");
    this.node.replaceChildren(...parts);
    this.node.hidden = false;
    const box = this.node.getBoundingClientRect();
    const x = event.clientX + 16 + box.width > innerWidth ? event.clientX - 16 - box.width : event.clientX + 16;
    const y = Math.min(event.clientY + 14, innerHeight - box.height - 8);
    this.node.style.left = Math.max(8, x) + "px";
    this.node.style.top = Math.max(8, y) + "px";
  },
  hide() {
    if (this.node) this.node.hidden = true;
  },
};

function tipRow(style, name, text, near) {
  const row = make("div", { class: near ? "row near" : "row" });
  row.append(style ? swatch(style) : make("span"), make("span", {}, name), make("span", {}, text));
  return row;
}

function nearest(xs, x) {
  let best = 0;
  for (let i = 1; i < xs.length; i++) if (Math.abs(xs[i] - x) < Math.abs(xs[best] - x)) best = i;
  return best;
}

// Lines with bands. A series is {name, style, x, y, low, high, band, note}.
function lineChart(host, series, options) {
  const { xTicks, xLabel, xText, unit, label, yTop } = options;
  host.replaceChildren();
  const found = series.filter((s) => s.x.length);
  if (!found.length) {
    host.append(make("p", { class: "empty" }, options.empty || "No method with such a curve is switched on."));
    return;
  }
  const width = options.width || 380, height = options.height || 250;
  const frame = { left: 44, right: width - 12, top: 12, bottom: height - 38 };
  const xHigh = options.xHigh || Math.max(...found.map((s) => s.x[s.x.length - 1])) || 1;
  const all = found.flatMap((s) => [...s.y, ...((s.band && s.low) || []), ...((s.band && s.high) || [])]);
  const yLow = Math.min(0, ...all);
  const most = Math.max(0, ...all) || (yLow < 0 ? 0 : 1);
  const yMarks = ticks(yLow, yTop || most, 4);
  const yHigh = yTop || Math.max(most, yMarks[yMarks.length - 1]);
  const px = (x) => frame.left + (x / xHigh) * (frame.right - frame.left);
  const py = (y) => frame.bottom - ((y - yLow) / (yHigh - yLow)) * (frame.bottom - frame.top);
  const names = found.map((s) => s.name).join(", ");
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: 0, "aria-label": `${label}: ${names}` });
  for (const y of yMarks) {
    svg.append(draw("line", { class: "gridline", x1: frame.left, x2: frame.right, y1: py(y), y2: py(y) }));
    svg.append(draw("text", { x: frame.left - 7, y: py(y) + 4, "text-anchor": "end" }, unit === null ? digits(y, unit) : String(+y.toFixed(unit <= 1 ? 2 : 1))));
  }
  for (const x of xTicks(xHigh)) {
    svg.append(draw("text", { x: px(x), y: frame.bottom + 17, "text-anchor": "middle" }, xText(x)));
    svg.append(draw("line", { class: "axis", x1: px(x), x2: px(x), y1: frame.bottom, y2: frame.bottom + 4 }));
  }
  svg.append(draw("line", { class: "axis", x1: frame.left, x2: frame.right, y1: py(Math.max(0, yLow)), y2: py(Math.max(0, yLow)) }));
  svg.append(draw("text", { x: (frame.left + frame.right) / 2, y: height - 4, "text-anchor": "middle" }, xLabel));
  for (const s of found) svg.append(...curve(s, px, py));
  const layer = draw("g", { "pointer-events": "none" });
  svg.append(layer);
  hover(svg, layer, found, { px, py, frame, xHigh, options });
  host.append(svg);
}

function curve(s, px, py) {
  const path = (ys) => ys.map((y, i) => `${i ? "L" : "M"}${px(s.x[i]).toFixed(1)} ${py(y).toFixed(1)}`).join("");
  const parts = [];
  if (s.low && s.band) {
    const back = s.low.map((y, i) => `L${px(s.x[i]).toFixed(1)} ${py(y).toFixed(1)}`).reverse().join("");
    parts.push(draw("path", { d: path(s.high) + back + "Z", style: `fill:${s.style.colour}`, opacity: 0.13, stroke: "none" }));
  }
  const stroke = { fill: "none", "stroke-width": s.style.width, "stroke-dasharray": s.style.dash, "stroke-linejoin": "round" };
  parts.push(draw("path", { d: path(s.y), style: `stroke:${s.style.colour}`, "data-method": s.name, ...stroke }));
  if (s.style.points || s.x.length === 1) {
    for (let i = 0; i < s.x.length; i++) parts.push(draw("circle", { cx: px(s.x[i]), cy: py(s.y[i]), r: 3, style: `fill:${s.style.colour}` }));
  }
  return parts;
}

// A line at the pointer, or at the place that the arrow keys have moved it to, and what is there.
function hover(svg, layer, found, view) {
  const { px, py, frame, xHigh, options } = view;
  const places = [...new Set(found.flatMap((s) => s.x))].sort((a, b) => a - b);
  let place = places.length - 1;
  function show(x, y, event) {
    layer.replaceChildren();
    const at = places[nearest(places, x)];
    layer.append(draw("line", { class: "cross", x1: px(at), x2: px(at), y1: frame.top, y2: frame.bottom }));
    const slack = (xHigh / 40) || 1;
    const here = found.map((s) => ({ s, i: nearest(s.x, at) })).filter(({ s, i }) => Math.abs(s.x[i] - at) <= slack);
    here.sort((a, b) => b.s.y[b.i] - a.s.y[a.i]);
    let near = null;
    for (const one of here) if (!near || Math.abs(py(one.s.y[one.i]) - y) < Math.abs(py(near.s.y[near.i]) - y)) near = one;
    const parts = [make("b", {}, options.xTitle(at))];
    for (const { s, i } of here) {
      layer.append(draw("circle", { cx: px(s.x[i]), cy: py(s.y[i]), r: s === near.s ? 5 : 3.5, style: `fill:${s.style.colour}` }));
      const ends = s.low ? { low: s.low[i], high: s.high[i] } : {};
      parts.push(tipRow(s.style, s.name, span({ value: s.y[i], ...ends }, options.unit), s === near.s && here.length > 1));
    }
    if (near) parts.push(make("div", { class: "more" }, ...near.s.note(near.i).flatMap((line) => [line, make("br")])));
    tip.show(event, parts);
  }
  const leave = () => { layer.replaceChildren(); tip.hide(); };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect(), scale = svg.viewBox.baseVal.width / box.width;
    const x = (event.clientX - box.left) * scale, y = (event.clientY - box.top) * scale;
    show(((x - frame.left) / (frame.right - frame.left)) * xHigh, y, event);
  });
  svg.addEventListener("pointerleave", leave);
  svg.addEventListener("blur", leave);
  svg.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move) return;
    event.preventDefault();
    place = Math.max(0, Math.min(places.length - 1, place + move));
    const box = svg.getBoundingClientRect(), scale = box.width / svg.viewBox.baseVal.width;
    show(places[place], frame.top, { clientX: box.left + px(places[place]) * scale, clientY: box.top + 20 });
  });
}

// One row per method, one panel per statistic. A row is {name, label, style, values: [...], whole}.
function dotChart(host, rows, titles, unit, tipParts) {
  host.replaceChildren();
  if (!rows.length) {
    host.append(make("p", { class: "empty" }, "No method with a score over all tasks is switched on."));
    return;
  }
  const width = 1160, line = 26, top = 30, names = 290, gap = 34;
  const height = top + rows.length * line + 26;
  const panel = (width - names) / titles.length;
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${titles.join(", ")} of ${rows.map((r) => r.name).join(", ")}` });
  rows.forEach((row, r) => {
    const y = top + r * line + line / 2;
    const share = row.whole ? "" : row.label.slice(row.name.length);
    const most = Math.floor((names - 8) / 7.4) - Math.ceil(share.length * 0.85);
    const name = row.name.length > most ? row.name.slice(0, most - 1) + "…" : row.name;
    svg.append(draw("text", { class: "name", x: 0, y: y + 4.5 }, name, draw("tspan", { class: "share" }, share)));
    svg.append(draw("line", { class: "gridline", x1: names, x2: width, y1: y, y2: y }));
  });
  titles.forEach((title, t) => {
    const all = rows.flatMap((row) => row.values[t] ? [row.values[t].value, row.values[t].low ?? row.values[t].value, row.values[t].high ?? row.values[t].value] : []);
    if (!all.length) return;
    const least = Math.min(...all), most = Math.max(...all), pad = (most - least) * 0.08 || unit * 0.05;
    const low = least < 0 ? least - pad : Math.max(0, least - pad), high = most + pad;
    const left = names + t * panel + (t ? gap / 2 : 8), right = names + (t + 1) * panel - gap / 2;
    const px = (x) => left + ((x - low) / (high - low)) * (right - left);
    svg.append(draw("text", { class: "name", x: left, y: 16, "font-weight": 600 }, title));
    for (const x of ticks(low, high, 4)) {
      svg.append(draw("line", { class: "gridline", x1: px(x), x2: px(x), y1: top, y2: height - 22 }));
      svg.append(draw("text", { x: px(x), y: height - 6, "text-anchor": "middle" }, String(+x.toFixed(2))));
    }
    rows.forEach((row, r) => {
      const found = row.values[t];
      if (!found) return;
      const y = top + r * line + line / 2, mark = draw("g", {});
      if (found.low !== null) mark.append(draw("line", { x1: px(found.low), x2: px(found.high), y1: y, y2: y, "stroke-width": 7, opacity: 0.35, style: `stroke:${row.style.colour}` }));
      mark.append(draw("circle", { cx: px(found.value), cy: y, r: 5, "stroke-width": 2, style: `fill:${row.whole ? row.style.colour : "var(--card)"};stroke:${row.style.colour}` }));
      mark.append(draw("rect", { x: left, y: y - line / 2, width: right - left, height: line, fill: "transparent" }));
      mark.addEventListener("pointermove", (event) => tip.show(event, tipParts(row, title, found)));
      mark.addEventListener("pointerleave", () => tip.hide());
      svg.append(mark);
    });
  });
  host.append(svg);
}
