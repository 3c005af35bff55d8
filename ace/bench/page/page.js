"use strict";
// The page's tables, charts and switches. All numbers come from the JSON element; nothing is
// computed here but places on the screen.

const data = JSON.parse(document.getElementById("data").textContent);
const SCORINGS = { last: "Last evaluation", last3: "Mean of last three" };
const AXES = { env: "Env steps", wall: "Wall-clock" };
const STATISTICS = { iqm: "IQM", median: "Median", mean: "Mean", optimality_gap: "Optimality gap ↓" };
const COLUMNS = { "": "Score", ...Object.fromEntries(Object.keys(data.columns).map((name) => [name, name])) };
const state = { scoring: "last", axis: "env", column: "", on: new Set(data.methods.filter((m) => m.shown).map((m) => m.name)) };
const byId = (id) => document.getElementById(id);

const styles = new Map();
{
  const counts = { ours: 0, public: 0, paper: 0 };
  for (const method of data.methods) {
    const index = counts[method.kind]++;
    const dashes = { ours: index < 8 ? null : "7 3", public: ["6 3", "2 3", "8 3 2 3"][Math.floor(index / 10) % 3], paper: "1.5 4" };
    const sizes = { ours: 8, public: 10, paper: 2 };
    const number = method.kind === "paper" ? Math.min(index, 1) : index % sizes[method.kind];
    styles.set(method.name, { colour: `var(--${method.kind}${number})`, dash: dashes[method.kind], width: method.kind === "ours" ? 2.4 : 1.8, points: method.kind === "paper" });
  }
}
const scored = data.tasks.filter((task) => task.scale && task.env_step !== null);
const methodsOn = () => data.methods.filter((m) => state.on.has(m.name));
const unitOf = (task) => (task.column === "return" ? 1000 : 1);
const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

function target(method, programs) {
  if (programs && programs.length === 1) return "#" + programs[0];
  return "#from-" + data.methods.findIndex((m) => m.name === method);
}

// Text of an element's tooltip, for pointer and keyboard.
function explain(node, lines) {
  const show = (event) => {
    const box = node.getBoundingClientRect();
    const at = event.type === "focus" ? { clientX: box.left, clientY: box.bottom } : event;
    tip.show(at, lines().map((text, i) => make(i ? "div" : "b", i ? { class: "more" } : {}, text)));
  };
  node.addEventListener("pointermove", show);
  node.addEventListener("focus", show);
  node.addEventListener("pointerleave", () => tip.hide());
  node.addEventListener("blur", () => tip.hide());
  return node;
}

function numberLink(text, href, lines) {
  return explain(make("a", { class: "num", href }, text), lines);
}

function origin(programs, unknown) {
  const found = (programs || []).map((key) => data.programs[key]);
  const lines = found.map((p) => `${p.commit ? "commit " + p.commit : "commit not recorded"}: ${p.command || p.note || "command not recorded"}`);
  if (unknown) lines.push("No program is described that made these seeds.");
  return lines;
}

function scoreLines(method, task, score) {
  const found = score[state.scoring];
  const lines = [`${method.name}, ${task.name}`];
  lines.push(`${score.column} at env step ${score.env_step.toLocaleString("en")}` + (state.scoring === "last3" && score.window.length ? `: mean of ${score.window.map(steps).join(", ")}` : ""));
  if (score.seeds.length) lines.push(`${plural(score.seeds.length, "seed")}: ` + score.seeds.map((seed, i) => `${seed}: ${digits(found.runs[i], unitOf(task))}`).join(", "));
  if (score.missing.length) lines.push(`left out, no evaluation there: seed ${score.missing.join(", ")}`);
  return lines.concat(method.kind === "ours" ? origin(score.programs, score.unknown) : [method.source]);
}

function table(host, header, rows, note) {
  host.replaceChildren();
  if (!rows.length) {
    host.append(make("p", { class: "empty" }, note || "Nothing to show."));
    return;
  }
  const head = make("tr", {}, ...header.map((cell) => make("th", { scope: "col" }, ...[cell].flat())));
  const body = rows.map((row) => make("tr", {}, ...row.map((cell, i) => (cell instanceof HTMLTableCellElement ? cell : make(i ? "td" : "th", i ? {} : { scope: "row" }, ...[cell].flat())))));
  host.append(make("table", {}, make("thead", {}, head), make("tbody", {}, ...body)));
}

function interval(found, unit) {
  if (found.low === null || found.low === undefined) return null;
  return make("small", {}, `${digits(found.low, unit)} to ${digits(found.high, unit)}`);
}

function aggregates() {
  const rows = [];
  for (const method of methodsOn()) {
    const all = data.aggregates[method.name], found = all && all[state.scoring];
    if (!found) continue;
    const whole = found.tasks === scored.length;
    const label = whole ? method.name : `${method.name} (${found.tasks} of ${scored.length} tasks)`;
    rows.push({ name: method.name, method, label, whole, found, style: styles.get(method.name), values: Object.keys(STATISTICS).map((key) => found[key] || null) });
  }
  const kinds = ["ours", "paper", "public"];
  rows.sort((a, b) => kinds.indexOf(a.method.kind) - kinds.indexOf(b.method.kind) || b.whole - a.whole || b.found.iqm.value - a.found.iqm.value);
  const titles = Object.values(STATISTICS);
  dotChart(byId("aggregates-chart"), rows, titles, data.unit, (row, title, found) => [
    make("b", {}, title), tipRow(row.style, row.label, span(found, data.unit)),
    make("div", { class: "more" }, `${plural(row.found.runs, "run")} of ${plural(row.found.tasks, "task")}`),
  ]);
  const cells = rows.map((row) => [
    [row.name, make("small", {}, kindText(row.method))],
    row.whole ? `${row.found.tasks}` : make("span", { class: "mute" }, `${row.found.tasks} of ${scored.length}`),
    String(row.found.runs),
    ...row.values.map((found) => found ? [numberLink(digits(found.value, data.unit), target(row.name, row.method.programs), () => [row.label, ...origin(row.method.programs, row.method.unknown), ...(row.method.kind === "ours" ? [] : [row.method.source])]), interval(found, data.unit)] : "–"),
  ]);
  table(byId("aggregates-table"), ["Method", "Tasks", "Runs", ...titles], cells, "No method with a score over all tasks is switched on.");
}

function kindText(method) {
  return { ours: method.source, public: "public result", paper: "printed in the paper" }[method.kind];
}

function axisOptions() {
  if (state.axis === "env") return { xTicks: (high) => ticks(0, high, 4), xText: steps, xLabel: "env steps", xTitle: (x) => `${x.toLocaleString("en")} env steps` };
  return { xTicks: timeTicks, xText: timeLabel, xLabel: "wall-clock", xTitle: (x) => duration(x) };
}

function series(method, line, note) {
  const x = state.axis === "env" ? line.env_step : line.wall;
  const band = method.kind === "ours"; // the bands of public results would hide ours
  return x ? { name: method.name, style: styles.get(method.name), x, y: line.value, low: line.low, high: line.high, band, note } : null;
}

const NO_CLOCK = "No wall-clock is known of the methods that are switched on.";

function overall() {
  const lines = [], profiles = [];
  for (const method of methodsOn()) {
    const line = (data.aggregate_curves[method.name] || {})[state.scoring];
    const share = line && line.tasks < line.of ? [`only ${line.tasks} of ${line.of} tasks`] : [];
    if (line) lines.push(series(method, line, (i) => [...share, ...(state.axis === "wall" ? [`${steps(line.env_step[i])} env steps`] : [])]));
    const profile = (data.profiles[method.name] || {})[state.scoring];
    if (profile) profiles.push({ name: method.name, style: styles.get(method.name), x: data.profiles.scores, y: profile.value, low: profile.low, high: profile.high, band: true, note: () => share });
  }
  const size = { width: 560, height: 320 };
  const top = range(data.methods.map((m) => [m, data.aggregate_curves[m.name]]));
  lineChart(byId("iqm-chart"), lines.filter(Boolean).map((s) => crop(s, top)), { ...size, ...axisOptions(), unit: data.unit, label: "IQM over all tasks", empty: state.axis === "wall" ? NO_CLOCK : undefined });
  lineChart(byId("profile-chart"), profiles, { ...size, xTicks: (high) => ticks(0, high, 5), xText: (x) => String(+x.toFixed(2)), xLabel: "score", xTitle: (x) => `runs above ${digits(x, data.unit)}`, xHigh: data.unit, yTop: 1, unit: 1, label: "Performance profile" });
}

function taskTable() {
  const methods = methodsOn().filter((m) => data.tasks.some((task) => (data.scores[m.name] || {})[task.name]));
  const rows = data.tasks.map((task) => {
    const found = methods.map((m) => (data.scores[m.name] || {})[task.name]);
    const cells = methods.map((method, i) => {
      const score = found[i], value = score && score[state.scoring];
      if (!value) return make("td", { class: "mute" }, "–");
      const link = numberLink(digits(value.value, unitOf(task)), target(method.name, score.programs), () => scoreLines(method, task, score));
      const other = score.env_step === task.env_step ? "" : ` at ${steps(score.env_step)}`;
      const few = score.missing.length ? ` of ${score.seeds.length + score.missing.length}` : "";
      const seeds = score.seeds.length ? make("small", {}, `${score.seeds.length}${few} seed${score.seeds.length + score.missing.length === 1 ? "" : "s"}${other}`) : null;
      return make("td", {}, link, ...[interval(value, unitOf(task)), seeds].filter(Boolean));
    });
    return [[task.name, make("small", {}, task.env_step === null ? "no shared env step" : `${task.column} at ${task.env_step.toLocaleString("en")} env steps`)], ...cells];
  });
  const head = methods.map((m) => [m.name, make("small", {}, { ours: "ours", public: "public", paper: "printed" }[m.kind])]);
  table(byId("tasks-table"), ["Task", ...head], rows);
}

// Of the score, or of the chosen column: a column has tasks and curves of its own.
function curves() {
  const host = byId("curves"), found = state.column ? data.columns[state.column] : data;
  host.replaceChildren();
  for (const task of found.tasks) {
    const chart = make("div"), unit = state.column ? null : unitOf(task);
    const lines = methodsOn().map((method) => {
      const mine = (found.curves[method.name] || {})[task.name] || {};
      const line = mine[state.scoring] || (method.kind === "paper" ? mine.last : null);
      return line ? series(method, line, (i) => curveNote(method, unit, line, i)) : null;
    });
    const top = range(data.methods.map((m) => [m, (found.curves[m.name] || {})[task.name]]));
    const cut = lines.filter(Boolean).map((s) => crop(s, top));
    const caption = make("figcaption", {}, task.name, make("small", {}, task.column));
    host.append(make("figure", { class: "card" }, caption, chart));
    lineChart(chart, cut, { ...axisOptions(), unit, label: task.name, empty: state.axis === "wall" ? NO_CLOCK : undefined });
  }
}

// Where our own curves end: a public one of 1M env steps would squeeze ours into a corner.
function range(lines) {
  const key = state.axis === "env" ? "env_step" : "wall";
  const ends = lines.filter(([method, line]) => method.kind === "ours" && line && line[state.scoring] && line[state.scoring][key]).map(([, line]) => line[state.scoring][key].at(-1));
  return ends.length ? Math.max(...ends) : Infinity;
}

// A curve of which only its beginning is left would be a stray dot at zero.
function crop(s, top) {
  const inside = s.x.filter((x) => x <= top).length;
  const keep = inside === 1 && s.x.length > 1 && s.x[0] === 0 ? 0 : inside;
  const part = (list) => (list ? list.slice(0, keep) : list);
  return { ...s, x: part(s.x), y: part(s.y), low: part(s.low), high: part(s.high) };
}

function curveNote(method, unit, line, i) {
  const notes = [];
  if (state.axis === "wall") notes.push(`${steps(line.env_step[i])} env steps`);
  if (line.seeds) notes.push(`seeds of ${method.name}: ` + Object.entries(line.seeds).map(([seed, values]) => `${seed}: ${digits(values[i], unit)}`).join(", "));
  else if (line.count) notes.push(`${method.name}: ${plural(line.count, "seed")}`);
  else notes.push(method.source);
  if (line.thinned) notes.push("not every evaluation is drawn");
  return notes;
}

function improvement() {
  const names = methodsOn().map((m) => m.name);
  const pairs = new Map();
  for (const pair of data.improvement[state.scoring]) {
    pairs.set(pair.x + "\n" + pair.y, pair);
    const flip = (x) => (x === null ? null : 1 - x);
    pairs.set(pair.y + "\n" + pair.x, { ...pair, value: flip(pair.value), low: flip(pair.high), high: flip(pair.low) });
  }
  const ours = names.filter((x) => data.methods.find((m) => m.name === x).kind === "ours" && names.some((y) => pairs.has(x + "\n" + y)));
  const columns = names.filter((y) => ours.some((x) => pairs.has(x + "\n" + y)));
  const rows = ours.map((x) => [x, ...columns.map((y) => {
    const pair = pairs.get(x + "\n" + y);
    if (!pair) return make("td", { class: "mute" }, "–");
    const sure = pair.low !== null && (pair.low > 0.5 || pair.high < 0.5);
    const tint = `background:rgba(var(--${pair.value >= 0.5 ? "win" : "lose"}),${(Math.abs(pair.value - 0.5) * 0.7).toFixed(3)})`;
    const link = numberLink(pair.value.toFixed(2), target(x, null), () => [`${x} above ${y}`, `${span(pair, 1)} on ${plural(pair.tasks, "task")}`]);
    if (sure) link.classList.add("best");
    return make("td", { style: tint }, link, ...[interval(pair, 1), make("small", {}, plural(pair.tasks, "task"))].filter(Boolean));
  })]);
  table(byId("improvement-table"), ["", ...columns], rows, "Switch on two methods with the same tasks to compare them.");
}

function reach() {
  const methods = methodsOn().filter((m) => m.kind !== "paper" && data.efficiency.some((row) => row.reached[m.name]));
  const rows = [];
  for (const found of data.efficiency.filter((row) => row.scoring === state.scoring)) {
    const unit = unitOf(data.tasks.find((task) => task.name === found.task));
    found.parts.forEach((part, i) => {
      rows.push([
        i ? make("th", { scope: "row", class: "mute" }, "") : found.task,
        [digits(found.scores[i], unit), make("small", {}, `${(part * 100).toFixed(0)} % of ${found.best}`)],
        ...methods.map((method) => {
          const point = (found.reached[method.name] || [])[i];
          if (!point) return make("td", { class: "mute" }, "–");
          if (point.env_step === null) return make("td", { class: "mute nowrap" }, "not reached");
          const time = point.seconds === null ? null : make("small", {}, duration(point.seconds));
          return make("td", {}, numberLink(point.env_step.toLocaleString("en"), target(method.name, method.programs), () => [method.name, ...origin(method.programs, method.unknown)]), ...[time].filter(Boolean));
        }),
      ]);
    });
  }
  table(byId("reach-table"), ["Task", "Score", ...methods.map((m) => m.name)], rows, "No task has a score above zero to reach.");
}

function fact(name, value) {
  return value === null || value === undefined || value === "" ? null : make("span", {}, name + " ", make("b", {}, String(value)), "  ");
}

function sources() {
  const host = byId("sources-list"), seen = new Set(), others = [];
  data.methods.forEach((method, index) => {
    const id = "from-" + index;
    const name = [swatch(styles.get(method.name)), " " + method.name];
    if (method.kind !== "ours") {
      const row = make("tr", { id }, make("th", { scope: "row" }, ...name), make("td", { class: "left" }, make("code", {}, method.source || "not recorded")));
      others.push(row);
      return;
    }
    const card = make("article", { class: "card source", id }, make("h3", {}, ...name, make("small", { class: "mute" }, method.source)));
    if (method.unknown) card.append(make("p", { class: "facts" }, "No program is described that made some or all of these seeds: no file in the suite's programs folder names them."));
    for (const key of method.programs) {
      const again = make("p", { class: "facts" }, "Also made by ", make("a", { href: "#" + key }, data.programs[key].id));
      card.append(seen.has(key) ? again : program(key, data.programs[key]));
      seen.add(key);
    }
    host.append(card);
  });
  if (!others.length) return;
  const head = make("tr", {}, make("th", { scope: "col" }, "Not ours"), make("th", { scope: "col", class: "left" }, "Source (owner/repository:file on GitHub, or the paper)"));
  host.append(make("div", { class: "scroll card" }, make("table", {}, make("thead", {}, head), make("tbody", {}, ...others))));
}

function program(key, found) {
  const rate = found.lane_steps_per_s, time = found.wall_clock_s;
  const facts = [fact("commit", found.commit || "not recorded"), fact("hardware", found.hardware), fact("wall-clock", time ? duration(time) : null), fact("lanes", found.lanes), fact("lane-steps/s", rate ? Math.round(rate).toLocaleString("en") : null), fact("preset", found.preset)];
  const node = make("div", { class: "program", id: key }, make("pre", {}, found.command || "command not recorded"), make("p", { class: "facts" }, ...facts.filter(Boolean)));
  if (found.note) node.append(make("p", { class: "facts" }, found.note));
  for (const part of ["versions", "config"]) {
    if (found[part]) node.append(make("details", { class: "small" }, make("summary", {}, part === "config" ? "Settings" : "Versions"), make("pre", {}, JSON.stringify(found[part], null, 1))));
  }
  return node;
}

function choice(host, options, key) {
  for (const [value, text] of Object.entries(options)) {
    const button = make("button", { type: "button", "aria-pressed": String(state[key] === value), "data-value": value }, text);
    button.addEventListener("click", () => {
      state[key] = value;
      for (const other of host.querySelectorAll("button")) other.setAttribute("aria-pressed", String(other === button));
      render();
    });
    host.append(button);
  }
}

function chip(method) {
  const button = make("button", { type: "button", class: "chip", "aria-pressed": String(state.on.has(method.name)), "data-method": method.name, title: method.source });
  const share = method.tasks ? ` (${method.tasks} of ${scored.length} tasks)` : " (curves only)"; // no evaluation at the step of the scores
  const few = method.kind === "public" && method.tasks < scored.length ? share : "";
  button.append(swatch(styles.get(method.name)), make("span", {}, method.name + few));
  button.addEventListener("click", () => {
    if (!state.on.delete(method.name)) state.on.add(method.name);
    button.setAttribute("aria-pressed", String(state.on.has(method.name)));
    render();
  });
  return button;
}

function controls() {
  choice(byId("scoring"), SCORINGS, "scoring");
  choice(byId("axis"), AXES, "axis");
  choice(byId("column"), COLUMNS, "column");
  byId("column").hidden = Object.keys(COLUMNS).length === 1;
  const hidden = data.methods.filter((m) => !m.shown);
  byId("methods").append(...data.methods.filter((m) => m.shown).map(chip));
  if (hidden.length) {
    byId("public").hidden = false;
    byId("public").querySelector("summary").textContent = `${plural(hidden.length, "more public result")} to switch on`;
    byId("public").querySelector("div").append(...hidden.map(chip));
  }
  const dark = () => (document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const name = () => { byId("theme").textContent = dark() ? "Light" : "Dark"; };
  byId("theme").addEventListener("click", () => { document.documentElement.dataset.theme = dark() ? "light" : "dark"; name(); });
  name();
}

function words() {
  const ours = data.methods.filter((m) => m.kind === "ours");
  const at = [...new Set(data.tasks.map((t) => t.env_step).filter((x) => x !== null))].sort((a, b) => a - b);
  const range = at.length === 1 ? at[0].toLocaleString("en") : `${at[0].toLocaleString("en")} to ${at[at.length - 1].toLocaleString("en")}`;
  const counts = ours.flatMap((m) => Object.values(data.scores[m.name]).map((s) => s.seeds.length));
  const low = Math.min(...counts), high = Math.max(...counts);
  byId("subtitle").textContent = `${plural(ours.length, "method")}, ${plural(data.tasks.length, "task")}, ${low === high ? plural(low, "seed") : `${low} to ${high} seeds`} each, scored at ${range} env steps.`;
  const beside = " Lower is better for the optimality gap. A method with fewer tasks has an open circle and is not comparable with the others.";
  byId("aggregates-about").textContent = `${plural(scored.length, "task")} at ${range} env steps, with 95 % stratified bootstrap intervals over seeds.${beside}`;
  byId("tasks-about").textContent = "Mean over seeds with its 95 % interval. Hover over a number for its seeds; click it for the command and the commit. Curves are means over seeds with 95 % intervals." + (Object.keys(COLUMNS).length > 1 ? " Curves of other columns than the score show our methods alone." : "");
  byId("reach-about").textContent = "The first evaluation at which the mean over seeds reaches a part of the best score that one of our methods has at the budget, and the wall-clock until then where it is known.";
  if (data.notes.length) {
    byId("notes").hidden = false;
    byId("notes").querySelector("summary").textContent = plural(data.notes.length, "note") + " on these numbers";
    byId("notes").querySelector("ul").append(...data.notes.map((note) => make("li", {}, note)));
  }
}

function render() {
  tip.hide();
  for (const part of [aggregates, overall, taskTable, curves, improvement, reach]) part();
  document.documentElement.dataset.rendered = String(1 + Number(document.documentElement.dataset.rendered || 0));
}

controls();
words();
sources();
render();
