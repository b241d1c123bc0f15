// The page: panels of timelines to one scale of time, whatever their size.
//
// - Only what the window shows is drawn: rows are sorted, so the tasks in a window
//   are found by halving. Few are drawn as bars; many as one heatmap (an image), in
//   which a pixel has the colour that fills most of it.
// - A task shorter than a pixel still leaves a mark: as a bar it is widened to one
//   pixel, and in the heatmap it outvotes tasks that show in other pixels too.
// - A redraw asked for during another waits, and only the last one asked for is done.
// - Text from the data goes into the page as text nodes, never as markup.
//
// data.js, drawing.js, pointing.js, waiting.js and this file are one module script, in
// this order.

const BARS = 3000; // drawn exactly, on the whole page
const MARGINS = 0.01; // of the step, before and after it
const DEEPEST = 1e-9; // of the step, in the closest view

const find = (selector) => document.querySelector(selector);
const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

// ---------------------------------------------------------------- drawing

let panels = [];
let step = 1; // seconds of the longest panel
let view = [0, 1]; // the window of time, in seconds
let drawing = null, stale = false;
const state = { mode: "", bars: 0, tasks: 0, redraws: 0, outlined: 0, panels: [] };

async function draw(panel) {
  const places = panel.rows.map(({ tasks }) => within(panel, tasks, ...view));
  const tasks = places.reduce((sum, [first, after]) => sum + after - first, 0);
  const exact = tasks <= BARS / panels.length;
  const traces = [(exact ? bars : heatmap)(panel, places, view)];
  if (isTall(panel)) traces.push({ type: "scatter", x: [null], y: [null], xaxis: "x2" });
  const config = { displayModeBar: false, doubleClick: false, showTips: false };
  await Plotly.react(panel.figure, traces, layout(panel, view), config);
  return { mode: exact ? "bars" : "heatmap", bars: exact ? tasks : 0, tasks };
}

async function drawAll() {
  unpoint();
  closeWait();
  state.panels = await Promise.all(panels.map(draw));
  state.outlined = panels.reduce((sum, panel) => sum + drawPath(panel, view), 0);
  state.mode = state.panels.every(({ mode }) => mode === "bars") ? "bars" : "heatmap";
  state.bars = state.panels.reduce((sum, { bars }) => sum + bars, 0);
  state.tasks = state.panels.reduce((sum, { tasks }) => sum + tasks, 0);
  state.redraws++;
  await new Promise((resolve) => setTimeout(resolve)); // let events in
}

// Draws the view; resolves once nothing is left to draw.
function redraw() {
  stale = true;
  drawing ??= (async () => {
    try {
      while (stale) {
        stale = false;
        await drawAll();
      }
    } finally {
      drawing = null;
    }
  })();
  return drawing;
}

// ---------------------------------------------------------------- zooming

function show(from, to) {
  const span = Math.min(Math.max(to - from, step * DEEPEST), step * (1 + 2 * MARGINS));
  const start = Math.min(Math.max(from, -step * MARGINS), step * (1 + MARGINS) - span);
  view = [start, start + span];
  return redraw();
}

const showStep = () => show(-Infinity, Infinity);
const move = (share) => show(...view.map((end) => end + share * (view[1] - view[0])));
const zoom = (factor, around = (view[0] + view[1]) / 2) =>
  show(...view.map((end) => around + (end - around) * factor));

const pageScrolls = () => document.documentElement.scrollHeight > window.innerHeight + 1;

// Scrolling moves the page where it is longer than the window, and else zooms.
function onWheel(event, panel) {
  const sideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
  const zooms = event.ctrlKey || event.metaKey;
  if (!sideways && !zooms && pageScrolls()) return;
  event.preventDefault();
  const turned = (sideways && event.deltaX) || event.deltaY;
  const limited = Math.max(-300, Math.min(300, turned));
  if (sideways) move(limited / 1000);
  else zoom(Math.exp(limited / 250), timeAt(panel, event, view));
}

const KEYS = {
  "+": () => zoom(2 / 3), "=": () => zoom(2 / 3), "-": () => zoom(3 / 2),
  ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2),
  0: showStep, Escape: showStep,
};

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || !Object.hasOwn(KEYS, event.key)) return;
  event.preventDefault();
  KEYS[event.key]();
}

function onRelayout(change) {
  const end = (at) => change[`xaxis.range[${at}]`] ?? change[`xaxis2.range[${at}]`] ?? view[at];
  if (end(0) !== view[0] || end(1) !== view[1]) show(end(0), end(1));
}

function listen(panel) {
  const { figure } = panel;
  figure.on("plotly_relayout", onRelayout);
  figure.on("plotly_doubleclick", showStep);
  figure.addEventListener("wheel", (event) => onWheel(event, panel), { passive: false });
  figure.addEventListener("mousemove", (event) => {
    if (event.buttons || drawing) unpoint(); else point(panel, event, view);
  });
  let pressed = null;
  figure.addEventListener("mousedown", (event) => { pressed = event; unpoint(); }, true);
  figure.addEventListener("click", (event) => {
    const moved = pressed ? Math.abs(event.clientX - pressed.clientX) : 0;
    if (moved < STILL) openWait(panel, event, view);
  }, true);
  figure.addEventListener("mouseleave", unpoint);
}

// ---------------------------------------------------------------- the page

function addPanel(panel) {
  const summary = panel.summary.map(([label, value]) =>
    element("div", {}, element("dt", {}, label), element("dd", {}, value)));
  const words = [element("h2", {}, panel.title)];
  if (panel.subtitle) words.push(element("p", { className: "subtitle" }, panel.subtitle));
  const heading = element("div", {}, element("div", {}, ...words), element("dl", {}, ...summary));
  panel.figure = element("figure", { tabIndex: 0 });
  find("main").append(element("section", {}, heading, panel.figure));
}

function place() {
  const withChannels = find(".channels input").checked;
  const ranks = panels.reduce((sum, { ranks }) => sum + ranks, 0);
  for (const panel of panels) placeRows(panel, withChannels, ranks);
  const left = Math.max(...panels.map((panel) => panel.left));
  for (const panel of panels) panel.left = left;
  writeLegend();
}

function writeLegend() {
  const entries = new Map();
  for (const { rows, legend } of panels)
    for (const entry of legend)
      if (rows.some(({ operations }) => operations.has(entry.operation)))
        entries.set(entry.operation, entry);
  const items = [...entries.values()].map(({ name, from, to }) => {
    const swatch = element("i");
    swatch.style.background = `linear-gradient(90deg, ${from}, ${to})`;
    return element("li", {}, swatch, element("span", {}, capital(name)));
  });
  const note = element("li", { className: "note" });
  note.append("Lighter: later micro-batch. Numbers: micro-batch; of gathers and reductions, unit.");
  find(".legend").replaceChildren(...items, note);
}

function writeHint() {
  const wheel = pageScrolls() ? "Ctrl + scroll" : "scroll";
  find(".hint").textContent = `Drag or ${wheel} to zoom, shift + scroll or ← → to move, `
    + "double-click for the whole step"
    + (panels.some(({ waits }) => waits.length) ? ", click an idle stretch for its cause" : "");
}

const refresh = () => redraw().then(writeHint);

async function start() {
  const content = JSON.parse(find("#content").textContent);
  find("#content").remove();
  panels = await Promise.all(content.panels.map(load));
  step = Math.max(...panels.map(({ length }) => length)) || 1;
  find("h1").textContent = content.title;
  panels.forEach(addPanel);
  const channels = panels.flatMap(({ lanes }) => lanes).filter(({ size }) => size === "channel");
  find(".channels").hidden = !channels.some(({ tasks }) => tasks.length);
  find(".channels input").checked = content.opensWithChannels;
  find(".critical").hidden = !panels.some(({ criticalPath }) => criticalPath.length);
  place();
  await showStep();
  writeHint();
  panels.forEach(listen);
  find(".channels input").addEventListener("change", () => { place(); refresh(); });
  find(".critical input").addEventListener("change", redraw);
  find("nav button").addEventListener("click", showStep);
  document.addEventListener("keydown", onKey);
  window.addEventListener("resize", refresh);
}

window.bfpp = { state, show, showStep, view: () => [...view], ready: start() };
window.bfpp.ready.catch((error) => {
  console.error(error);
  find("main").append("This page cannot be drawn. It needs a browser of 2023 or later.");
});
