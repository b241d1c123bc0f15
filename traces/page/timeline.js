// Draws the timelines of the page, whatever their size, from the columns in #content.
//
// - Only what the window shows is drawn: rows are sorted, so the tasks in a window
//   are found by halving. Few are drawn as bars; many as one heatmap, in which a
//   pixel has the colour that fills most of it.
// - A task shorter than a pixel still leaves a mark: as a bar it is widened to one
//   pixel, and in the heatmap it outvotes tasks that show in other pixels too.
// - A redraw asked for during another waits, and only the last one asked for is done.
// - Text from the data goes into the page as text nodes, never as markup.

const BARS = 3000; // drawn exactly, on the whole page
const TICK = 110; // pixels between ticks, at least
const SMALLEST = 7.5; // letters, in pixels
const NEAR = 3; // pixels by which the pointer may miss a task
const MOST_NAMED = 6; // dependencies named below the pointer
const TALL = 720; // a panel higher than this has a second time axis, on top
const UNITS = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]];
const FONT = "system-ui, -apple-system, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif";
const MARGIN = { r: 16, b: 30, t: 8 };
const INK = "#16202c", GRID = "#e3e7ec";

const byId = (id) => document.getElementById(id);
const find = (selector) => document.querySelector(selector);
const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

// ---------------------------------------------------------------- data

async function unpack({ type, data }) {
  const text = atob(data);
  const bytes = new Uint8Array(text.length);
  for (let at = 0; at < text.length; at++) bytes[at] = text.charCodeAt(at);
  const inflated = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new globalThis[type](await new Response(inflated).arrayBuffer());
}

async function load(panel) {
  const names = Object.keys(panel.columns);
  const columns = await Promise.all(names.map((name) => unpack(panel.columns[name])));
  names.forEach((name, at) => { panel[name] = columns[at]; });
  delete panel.columns;
  panel.dependencyStart = new Uint32Array(panel.start.length + 1);
  panel.dependencies.forEach((count, task) => {
    panel.dependencyStart[task + 1] = panel.dependencyStart[task] + count;
  });
  panel.laneTasks = tasksOfLanes(panel);
  panel.length = 0;
  for (let task = 0; task < panel.start.length; task++)
    panel.length = Math.max(panel.length, endOf(panel, task));
  return panel;
}

const endOf = (panel, task) => panel.start[task] + panel.duration[task];

// For each lane, its tasks that take time, by start; a transfer is on two lanes.
function tasksOfLanes({ lanes, lane, peerLane, start, duration }) {
  const both = (visit) => {
    for (let task = 0; task < lane.length; task++) {
      if (!(duration[task] > 0)) continue;
      visit(lane[task], task);
      if (peerLane[task] >= 0) visit(peerLane[task], task);
    }
  };
  const counts = new Uint32Array(lanes.length);
  both((at) => { counts[at]++; });
  const tasks = Array.from(counts, (count) => new Int32Array(count));
  counts.fill(0);
  both((at, task) => { tasks[at][counts[at]++] = task; });
  for (const row of tasks)
    if (row.some((task, at) => at > 0 && start[task] < start[row[at - 1]]))
      row.sort((one, other) => start[one] - start[other]);
  return tasks;
}

// The first place in a row whose task starts after `time`.
function firstAfter(panel, tasks, time) {
  let low = 0, high = tasks.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (panel.start[tasks[middle]] > time) high = middle; else low = middle + 1;
  }
  return low;
}

// The places [first, after) of the tasks that a window shows.
function within(panel, tasks, from, to) {
  let first = firstAfter(panel, tasks, from);
  if (first > 0 && endOf(panel, tasks[first - 1]) > from) first--;
  return [first, firstAfter(panel, tasks, to)];
}

// ---------------------------------------------------------------- rows

// Where each lane is drawn, in pixels from the top: compute high, data half, channels less.
function placeRows(panel, withChannels, ranksOnPage) {
  const compute = Math.max(14, Math.min(36, Math.round(400 / ranksOnPage)));
  const sizes = { compute, data: Math.max(7, Math.round(compute * 0.5)), channel: Math.max(6, Math.round(compute * 0.4)) };
  const rankGap = Math.max(4, Math.round(compute * 0.3)), rowGap = compute > 20 ? 2 : 1;
  let top = rankGap, rank = null;
  panel.rows = [];
  panel.lanes.forEach((lane, at) => {
    const tasks = panel.laneTasks[at];
    if (!tasks.length || (lane.size === "channel" && !withChannels)) return;
    if (rank !== null) top += lane.rank === rank ? rowGap : rankGap;
    const height = sizes[lane.size];
    panel.rows.push({ ...lane, tasks, top, height, leads: lane.rank !== rank });
    rank = lane.rank;
    top += height;
  });
  panel.height = top + rankGap;
  const channels = panel.rows.some((row) => row.size === "channel" && row.height >= 10);
  panel.left = channels ? 172 : 76;
}

function rowTicks(rows) {
  const named = rows.filter((row) => row.leads || row.height >= 10);
  const text = named.map((row) => {
    if (!row.leads) return `<span style="font-size:10px;color:#8a94a0">${row.title}</span>`;
    return row.height >= 12 ? `Rank ${row.rank}` : `${row.rank}`;
  });
  return { tickvals: named.map((row) => row.top + row.height / 2), ticktext: text };
}

// ---------------------------------------------------------------- drawing

let view = [0, 1];
let step = 1;
let panels = [];
const state = { mode: "", bars: 0, tasks: 0, redraws: 0, panels: [] };

const plotWidth = (panel) => Math.max(200, panel.figure.clientWidth - panel.left - MARGIN.r);

function bars(panel, places) {
  const [from, to] = view, pixel = (to - from) / plotWidth(panel);
  const base = [], x = [], y = [], width = [], text = [], colour = [], ink = [], size = [], line = [];
  panel.rows.forEach((row, at) => {
    const [first, after] = places[at];
    for (let place = first; place < after; place++) {
      const task = row.tasks[place], left = Math.max(panel.start[task], from);
      const length = Math.max(Math.min(endOf(panel, task), to) - left, pixel);
      const label = labelOf(panel, task);
      const letters = Math.min(12, row.height - 3, (length / pixel - 2) / (label.length * 0.6));
      base.push(left);
      x.push(length);
      y.push(row.top + row.height / 2);
      width.push(row.height);
      text.push(letters < SMALLEST ? "" : label);
      colour.push(panel.colours[panel.colour[task]]);
      ink.push(panel.inks[panel.colour[task]]);
      size.push(letters);
      line.push(length / pixel > 4 ? 1 : 0);
    }
  });
  return {
    type: "bar", orientation: "h", base, x, y, width, text, hoverinfo: "skip",
    marker: { color: colour, line: { color: "#ffffff", width: line } },
    textposition: "inside", insidetextanchor: "middle", textangle: 0, constraintext: "none",
    insidetextfont: { family: FONT, color: ink, size },
  };
}

function labelOf(panel, task) {
  const number = panel.microbatch[task] < 0 ? panel.stage[task] : panel.microbatch[task];
  return number < 0 ? "" : `${number}`;
}

function heatmap(panel, places) {
  const [from, to] = view, pixels = Math.round(plotWidth(panel));
  const pixel = (to - from) / pixels, colours = panel.colours.length;
  const nothing = new Float32Array(pixels).fill(NaN);
  const z = [], y = [];
  panel.rows.forEach((row, at) => {
    if (at) z.push(nothing);
    z.push(majority(panel, row.tasks, places[at], from, pixel, pixels));
    y.push(row.top, row.top + row.height);
  });
  return {
    type: "heatmap", z, y, x0: from + pixel / 2, dx: pixel, hoverinfo: "skip", showscale: false,
    zmin: 0, zmax: colours,
    colorscale: panel.colours.flatMap((colour, at) => [[at / colours, colour], [(at + 1) / colours, colour]]),
  };
}

// For each pixel, half past the number of the colour that fills most of it, or NaN.
function majority(panel, tasks, [first, after], from, pixel, pixels) {
  const line = new Float32Array(pixels).fill(NaN);
  const votes = new Float64Array(panel.colours.length), voted = [];
  let here = -1;
  const count = () => {
    let most = 0;
    for (const colour of voted) {
      if (votes[colour] > most) { most = votes[colour]; line[here] = colour + 0.5; }
      votes[colour] = 0;
    }
    voted.length = 0;
  };
  for (let place = first; place < after; place++) {
    const task = tasks[place], colour = panel.colour[task];
    const left = (panel.start[task] - from) / pixel, right = left + panel.duration[task] / pixel;
    const begin = Math.max(0, Math.floor(left)), end = Math.min(pixels, Math.ceil(right));
    const weight = Math.ceil(right) - Math.floor(left) === 1 ? 1e6 : 1;
    for (let at = begin; at < end; at++) {
      if (at !== here) { count(); here = at; }
      if (!votes[colour]) voted.push(colour);
      votes[colour] += weight * (Math.min(right, at + 1) - Math.max(left, at));
    }
  }
  count();
  return line;
}

// A figure's layout: time in seconds across, pixels from the top down.
function layout(panel) {
  const tall = panel.height > TALL;
  const tracks = panel.rows.map(({ top, height }) => `M0,${top}H1V${top + height}H0Z`).join("");
  const time = { range: [...view], ...ticks(view, plotWidth(panel)), gridcolor: GRID, zeroline: false, ticks: "outside", tickcolor: GRID, ticklen: 4, tickfont: { size: 11.5, color: panel.ink } };
  return {
    width: panel.figure.clientWidth, height: panel.height + MARGIN.b + (tall ? MARGIN.b : MARGIN.t),
    margin: { ...MARGIN, t: tall ? MARGIN.b : MARGIN.t, l: panel.left, pad: 0 },
    font: { family: FONT, size: 12, color: INK }, paper_bgcolor: "#fff", plot_bgcolor: "#fff",
    showlegend: false, hovermode: false, dragmode: "zoom", barmode: "overlay", bargap: 0,
    xaxis: time,
    ...(tall && { xaxis2: { ...time, overlaying: "x", matches: "x", side: "top", showgrid: false } }),
    yaxis: { range: [panel.height, 0], fixedrange: true, showgrid: false, zeroline: false, ...rowTicks(panel.rows), tickfont: { size: Math.min(12.5, Math.max(10, panel.rows[0]?.height - 3)) } },
    shapes: [{ type: "path", path: tracks, xref: "paper", yref: "y", layer: "below", fillcolor: panel.idle, line: { width: 0 } }],
  };
}

function ticks([from, to], pixels) {
  const least = ((to - from) * TICK) / pixels, power = 10 ** Math.floor(Math.log10(least));
  const apart = [1, 2, 5, 10].map((round) => round * power).find((round) => round >= least * 0.999999);
  const [seconds, unit] = unitOf(Math.max(Math.abs(from), Math.abs(to)));
  const digits = Math.max(0, Math.ceil(-Math.log10(apart / seconds) - 1e-6));
  const tickvals = [], ticktext = [];
  for (let at = Math.ceil(from / apart - 1e-6); at * apart <= to + apart * 1e-6; at++) {
    tickvals.push(at * apart);
    ticktext.push(`${((at * apart) / seconds).toFixed(Math.min(digits, 15))} ${unit}`);
  }
  return { tickmode: "array", tickvals, ticktext };
}

const unitOf = (seconds) => UNITS.find(([size]) => seconds >= size * 0.999999) ?? UNITS.at(seconds ? -1 : 0);

function inWords(seconds) {
  const [size, unit] = unitOf(Math.abs(seconds));
  return `${+(seconds / size).toPrecision(6)} ${unit}`;
}

async function draw(panel) {
  const places = panel.rows.map((row) => within(panel, row.tasks, ...view));
  const shown = places.reduce((sum, [first, after]) => sum + after - first, 0);
  const exact = shown <= BARS / panels.length;
  const traces = [exact ? bars(panel, places) : heatmap(panel, places)];
  if (panel.height > TALL) traces.push({ type: "scatter", x: [null], y: [null], xaxis: "x2" });
  await Plotly.react(panel.figure, traces, layout(panel), { displayModeBar: false, doubleClick: false });
  return { mode: exact ? "bars" : "heatmap", bars: exact ? shown : 0, tasks: shown };
}

let drawing = null, stale = false;

// Draws all panels; resolves once nothing is left to draw.
function redraw() {
  stale = true;
  drawing ??= (async () => {
    try {
      while (stale) {
        stale = false;
        unpoint();
        state.panels = await Promise.all(panels.map(draw));
        state.mode = state.panels.every(({ mode }) => mode === "bars") ? "bars" : "heatmap";
        for (const count of ["bars", "tasks"])
          state[count] = state.panels.reduce((sum, panel) => sum + panel[count], 0);
        state.redraws++;
        await new Promise((resolve) => setTimeout(resolve));
      }
    } finally {
      drawing = null;
    }
  })();
  return drawing;
}

// ---------------------------------------------------------------- zooming

function show(from, to) {
  const span = Math.min(Math.max(to - from, step * 1e-9), step * 1.02);
  const start = Math.min(Math.max(from, -step * 0.01), step * 1.01 - span);
  view = [start, start + span];
  return redraw();
}

const showAll = () => show(-step * 0.01, step * 1.01);
const move = (share) => show(...view.map((end) => end + share * (view[1] - view[0])));

function zoom(factor, around = (view[0] + view[1]) / 2) {
  return show(...view.map((end) => around + (end - around) * factor));
}

const pageScrolls = () => document.documentElement.scrollHeight > window.innerHeight + 1;

function onWheel(event, panel) {
  const sideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
  if (!sideways && !event.ctrlKey && !event.metaKey && pageScrolls()) return;
  event.preventDefault();
  const turned = Math.max(-300, Math.min(300, sideways ? event.deltaX || event.deltaY : event.deltaY));
  if (sideways) move(turned / 1000);
  else zoom(Math.exp(turned / (event.ctrlKey ? 250 : 400)), timeAt(panel, event));
}

const KEYS = {
  "+": () => zoom(1 / 1.5), "=": () => zoom(1 / 1.5), "-": () => zoom(1.5),
  ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2), 0: showAll, Escape: showAll,
};

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in KEYS)) return;
  event.preventDefault();
  KEYS[event.key]();
}

// ---------------------------------------------------------------- pointing

const topOf = (panel) => (panel.height > TALL ? MARGIN.b : MARGIN.t);

function timeAt(panel, event) {
  const x = event.clientX - panel.figure.getBoundingClientRect().left - panel.left;
  return view[0] + (x / plotWidth(panel)) * (view[1] - view[0]);
}

// The row and the task below the pointer, or the nearest in that row; and how many are there.
function taskAt(panel, event) {
  const y = event.clientY - panel.figure.getBoundingClientRect().top - topOf(panel);
  const row = panel.rows.find(({ top, height }) => y >= top && y < top + height);
  const time = timeAt(panel, event), pixel = (view[1] - view[0]) / plotWidth(panel);
  if (!row || time < view[0] || time > view[1]) return null;
  const place = firstAfter(panel, row.tasks, time);
  const away = (task) => Math.max(panel.start[task] - time, time - endOf(panel, task), 0);
  const task = [place - 1, place].filter((at) => at in row.tasks).map((at) => row.tasks[at])
    .sort((one, other) => away(one) - away(other))[0];
  if (task === undefined || away(task) > NEAR * pixel) return null;
  const [first, after] = within(panel, row.tasks, time - pixel / 2, time + pixel / 2);
  return { row, task, crowd: after - first };
}

function nameOf(panel, task) {
  const words = [panel.operations[panel.operation[task]]];
  if (panel.stage[task] >= 0) words.push(`stage ${panel.stage[task]}`);
  if (panel.microbatch[task] >= 0) words.push(`micro-batch ${panel.microbatch[task]}`);
  return `${words.join(", ")}, ${rankOf(panel, task)}`;
}

function rankOf(panel, task) {
  const { rank } = panel.lanes[panel.lane[task]];
  return panel.peerLane[task] < 0 ? `rank ${rank}` : `rank ${rank} to ${panel.lanes[panel.peerLane[task]].rank}`;
}

function describe(panel, { row, task, crowd }) {
  const start = panel.start[task], end = endOf(panel, task);
  const facts = [
    ["Stage", panel.stage[task]], ["Micro-batch", panel.microbatch[task]],
    ["Rank", rankOf(panel, task).slice(5)], ["Lane", `${row.title} of rank ${row.rank}`],
    ["Start", inWords(start)], ["End", inWords(end)], ["Duration", inWords(end - start)],
  ].filter(([, value]) => value !== -1);
  const table = element("table", {}, ...facts.map(([label, value]) =>
    element("tr", {}, element("th", {}, label), element("td", {}, `${value}`))));
  const swatch = element("span");
  swatch.style.background = panel.colours[panel.colour[task]];
  const title = element("b", {}, swatch, capital(panel.operations[panel.operation[task]]));
  const tip = [title, table, ...dependencyLines(panel, row, task)];
  if (crowd > 1) tip.push(element("p", {}, `One of ${crowd} tasks in this pixel: zoom in to tell them apart.`));
  return tip;
}

function dependenciesOf(panel, task) {
  const range = panel.dependency.subarray(panel.dependencyStart[task], panel.dependencyStart[task + 1]);
  return Array.from(range, (back) => task - back).sort((one, other) => endOf(panel, other) - endOf(panel, one));
}

function dependencyLines(panel, row, task) {
  const dependencies = dependenciesOf(panel, task);
  const lines = dependencies.slice(0, MOST_NAMED).map((other, at) =>
    element("li", { className: at ? "" : "last" },
      `${capital(nameOf(panel, other))}: ended ${at || dependencies.length === 1 ? "" : "last, "}at ${inWords(endOf(panel, other))}`));
  if (dependencies.length > MOST_NAMED) lines.push(element("li", {}, `and ${dependencies.length - MOST_NAMED} more`));
  const parts = lines.length ? [element("p", {}, "Depends on"), element("ul", {}, ...lines)] : [element("p", {}, "Depends on no other task")];
  const before = row.tasks[firstAfter(panel, row.tasks, panel.start[task]) - 2];
  if (before !== undefined)
    parts.push(element("p", {}, "Before it in this lane"), element("ul", {}, element("li", {}, `${capital(nameOf(panel, before))}: ended at ${inWords(endOf(panel, before))}`)));
  return parts;
}

// Outlines of a task, in each row that shows it.
function outlines(panel, task, className) {
  const [from, to] = view, scale = plotWidth(panel) / (to - from);
  const left = Math.max(panel.start[task], from), right = Math.min(endOf(panel, task), to);
  if (!(panel.duration[task] > 0) || left > right) return [];
  const lanes = [panel.lane[task], panel.peerLane[task]].map((lane) => panel.laneTasks[lane]);
  return panel.rows.filter((row) => lanes.includes(row.tasks)).map((row) => {
    const mark = element("div", { className: `mark ${className}` });
    const box = { left: panel.left + (left - from) * scale - 1, top: topOf(panel) + row.top - 1, width: Math.max((right - left) * scale, 1) + 2, height: row.height + 2 };
    for (const side in box) mark.style[side] = `${box[side]}px`;
    return mark;
  });
}

let pointed = { panel: null, task: -1 };

function unpoint() {
  find(".tip").hidden = true;
  for (const mark of document.querySelectorAll(".mark")) mark.remove();
  pointed = { panel: null, task: -1 };
}

function onMove(event, panel) {
  const found = event.buttons || drawing ? null : taskAt(panel, event);
  if (!found) return unpoint();
  const tip = find(".tip");
  if (pointed.panel !== panel || pointed.task !== found.task || pointed.row !== found.row) {
    unpoint();
    pointed = { panel, ...found };
    tip.replaceChildren(...describe(panel, found));
    const others = dependenciesOf(panel, found.task).slice(0, MOST_NAMED);
    panel.figure.append(...others.flatMap((task) => outlines(panel, task, "dependency")), ...outlines(panel, found.task, "task"));
  }
  tip.hidden = false;
  const { offsetWidth, offsetHeight } = tip;
  const left = event.clientX + 16 + offsetWidth < window.innerWidth ? event.clientX + 16 : event.clientX - 16 - offsetWidth;
  const top = Math.min(event.clientY + 16, window.innerHeight - offsetHeight - 8);
  tip.style.left = `${Math.max(8, left)}px`;
  tip.style.top = `${Math.max(8, top)}px`;
}

// ---------------------------------------------------------------- the page

function addPanel(panel) {
  const heading = element("div", {}, element("div", {}, element("h2", {}, panel.title), element("p", { className: "subtitle" }, panel.subtitle)));
  if (panel.summary.length)
    heading.append(element("dl", {}, ...panel.summary.map(([label, value]) => element("div", {}, element("dt", {}, label), element("dd", {}, value)))));
  panel.figure = element("figure", { tabIndex: 0 });
  find("main").append(element("section", {}, heading, panel.figure));
}

function addLegend() {
  const entries = new Map(panels.flatMap(({ legend }) => legend).map((entry) => [entry.name, entry]));
  for (const { name, from, to } of entries.values()) {
    const swatch = element("i");
    swatch.style.background = `linear-gradient(90deg, ${from}, ${to})`;
    find(".legend").append(element("li", {}, swatch, element("span", {}, capital(name))));
  }
  find(".legend").append(element("li", { className: "note" }, "Lighter: later micro-batch. Numbers: micro-batch; of gathers and reductions, stage."));
}

function listen(panel) {
  const { figure } = panel;
  figure.on("plotly_relayout", (change) => {
    const from = change["xaxis.range[0]"] ?? change["xaxis2.range[0]"], to = change["xaxis.range[1]"] ?? change["xaxis2.range[1]"];
    if (from !== undefined || to !== undefined) show(from ?? view[0], to ?? view[1]);
  });
  figure.on("plotly_doubleclick", showAll);
  figure.addEventListener("wheel", (event) => onWheel(event, panel), { passive: false });
  figure.addEventListener("mousemove", (event) => onMove(event, panel));
  figure.addEventListener("mousedown", unpoint);
  figure.addEventListener("mouseleave", unpoint);
}

function place(withChannels) {
  const ranks = panels.reduce((sum, { lanes }) => sum + new Set(lanes.map(({ rank }) => rank)).size, 0);
  for (const panel of panels) placeRows(panel, withChannels, ranks);
  const left = Math.max(...panels.map((panel) => panel.left));
  for (const panel of panels) panel.left = left;
}

function hint() {
  const wheel = pageScrolls() ? "Ctrl + scroll" : "scroll";
  find(".hint").textContent = `Drag or ${wheel} to zoom, shift + scroll or ← → to move, double-click for the whole step`;
}

async function start() {
  const content = JSON.parse(byId("content").textContent);
  byId("content").remove();
  panels = await Promise.all(content.panels.map(load));
  step = Math.max(...panels.map(({ length }) => length)) || 1;
  find("h1").textContent = content.title;
  panels.forEach(addPanel);
  addLegend();
  const box = find(".channels input");
  box.checked = panels.some(({ channels }) => channels);
  find(".channels").hidden = !panels.some(({ lanes, laneTasks }) => lanes.some(({ size }, at) => size === "channel" && laneTasks[at].length));
  place(box.checked);
  await showAll();
  hint();
  panels.forEach(listen);
  box.addEventListener("change", () => { place(box.checked); redraw().then(hint); });
  find("nav button").addEventListener("click", showAll);
  document.addEventListener("keydown", onKey);
  window.addEventListener("resize", () => redraw().then(hint));
}

window.bfpp = { state, show, showAll, view: () => [...view], ready: start() };
window.bfpp.ready.catch((error) => {
  find("main").append(element("p", {}, `This page cannot be drawn here (${error.message}). It needs a browser of 2023 or later.`));
  throw error;
});
