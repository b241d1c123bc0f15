// The page: panels of timelines to one scale of time.
//
// - A redraw asked for during another waits, and only the last one asked for is done.
// - Text from the data goes into the page as text nodes, never as markup.
//
// The scripts are one module, in the order of `bfpp.traces.page.html.SCRIPTS`; this one is the last.

const find = (selector) => document.querySelector(selector);
const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

const NUMBERS = new Map([
  ["microbatch", "micro-batch"], ["unit", "unit for all-gathers and reductions"],
]);

let panels = [];
let drawing = null, stale = false;
let isShaded = false; // whether colours tell micro-batches apart
const state = { redraws: 0, milliseconds: 0 };

function draw(panel) {
  const { canvas, figure } = panel, width = plotWidth(panel), look = lookOf();
  const pen = canvasPen(canvas, figure.clientWidth, heightOf(panel), devicePixelRatio);
  canvas.style.height = `${heightOf(panel)}px`;
  drawPanel(panel, pen, view, width, look);
}

async function drawAll() {
  await new Promise(requestAnimationFrame);
  const begun = performance.now();
  unpoint();
  closeWait();
  panels.forEach(draw);
  writeNote();
  state.milliseconds = performance.now() - begun;
  state.redraws++;
  linkLater();
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

function addPanel(panel) {
  const words = panel.title === find("h1").textContent ? [] : [element("h2", {}, panel.title)];
  if (panel.headline.length) words.push(element("p", { className: "headline" }, ...panel.headline
    .map((each, at) => element("span", { className: panel.fallsShort && !at ? "short" : "" }, each))));
  if (panel.subtitle) words.push(element("p", { className: "subtitle" }, panel.subtitle));
  panel.canvas = element("canvas");
  panel.canvas.setAttribute("aria-hidden", "true");
  panel.figure = element("figure", { tabIndex: 0, role: "application" }, panel.canvas);
  panel.figure.setAttribute("aria-label", labelOfFigure(panel));
  find("main").append(element("section", {}, ...words, panel.figure));
  listenToPointers(panel);
}

// The description of a timeline for screen readers: title, numbers, and keys.
function labelOfFigure(panel) {
  const numbers = panel.summary.slice(0, 3).map(([label, value]) => `${label} ${value}`).join(", ");
  return `Timeline ${panel.title}, ${panel.ranks} ranks. ${numbers}. Up and down choose a row, `
    + "comma and full stop a task in it, i an idle stretch.";
}

// Replaces the panels of the page.
function setPanels(others) {
  panels = others;
  step = Math.max(...panels.map(({ length }) => length)) || 1;
  find("main").replaceChildren();
  panels.forEach(addPanel);
  const channels = panels.flatMap(({ lanes }) => lanes).filter(({ size }) => size === "channel");
  find(".channels").hidden = !channels.some(({ tasks }) => tasks.length);
  find(".critical").hidden = !panels.some(({ criticalPath }) => criticalPath.length);
  find(".memory").hidden = !panels.some(({ memory }) => memory.length);
  writeNumbers();
  findTasks(find(".find input").value);
}

function place() {
  const shown = { channels: isOn("channels"), memory: isOn("memory") };
  const ranks = panels.reduce((sum, { ranks }) => sum + ranks, 0);
  for (const panel of panels) placeRows(panel, shown, ranks);
  const left = Math.max(...panels.map((panel) => panel.left));
  for (const panel of panels) panel.left = left;
  writeLegend();
}

const isOn = (name) => !find(`.${name}`).hidden && find(`.${name} input`).checked;

function writeLegend() {
  const entries = new Map();
  for (const { rows, legend, operations: names } of panels)
    for (const entry of legend)
      if (rows.some(({ operations }) => operations.has(entry.operation)))
        entries.set(names[entry.operation], entry);
  const items = [...entries].map(([name, { from, to }]) => {
    const swatch = element("i");
    swatch.style.background = `linear-gradient(90deg, ${from}, ${to})`;
    return element("li", {}, swatch, element("span", {}, capital(name)));
  });
  isShaded = [...entries.values()].some(({ from, to }) => from !== to);
  find(".legend").replaceChildren(...items, element("li", { className: "note" }));
}

// The legend's note on what has no swatch: shades, and the numbers shown where they fit.
function writeNote() {
  const counted = new Set(panels.flatMap(({ counted }) => [...counted]));
  const numbers = [...NUMBERS].filter(([counts]) => counted.has(counts)).map(([, words]) => words);
  const shades = isShaded ? ["Lighter: later micro-batch."] : [];
  const words = [...shades, ...(numbers.length ? [`Numbers: ${numbers.join("; ")}.`] : [])];
  find(".legend .note").textContent = words.join(" ");
}

function writeHint() {
  const wheel = pageScrolls() ? "Ctrl + scroll" : "scroll";
  find(".hint").textContent = `Drag or ${wheel} to zoom, shift + scroll or ← → to move, `
    + "double-click or 0 for the whole step"
    + (panels.some(({ waits }) => waits.length) ? ", click an idle stretch for its cause" : "");
}

function listenToNavigation() {
  const placeAgain = () => { place(); redraw().then(writeHint); };
  for (const name of ["channels", "memory"])
    find(`.${name} input`).addEventListener("change", placeAgain);
  find(".critical input").addEventListener("change", redraw);
  find(".whole").addEventListener("click", showStep);
  find(".svg").addEventListener("click", saveSvg);
  find(".png").addEventListener("click", savePng);
  find(".find input").addEventListener("input", (event) => {
    findTasks(event.target.value);
    linkLater();
  });
  find(".find").addEventListener("submit", (event) => {
    event.preventDefault();
    nextHit();
  });
  document.addEventListener("keydown", onKey);
  window.addEventListener("resize", placeAgain);
  window.addEventListener("hashchange", followLink);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
}

async function start() {
  const content = JSON.parse(find("#content").textContent);
  find("#content").remove();
  find("h1").textContent = content.title;
  find(".lead").textContent = content.lead;
  find(".channels input").checked = content.opensWithChannels;
  setUpChoices(content);
  setUpResults(content);
  setPanels(await Promise.all(content.panels.map(load)));
  view = clampedView(-Infinity, Infinity);
  opening = viewNow();
  listenToNavigation();
  await followLink();
  writeHint();
}

window.bfpp = {
  state, show, showStep, nextHit, pictureAsSvg, pictureAsPng, topOf, replayedAnswer, asked: () => ask(),
  view: () => [...view], panels: () => panels, ready: start(),
};
window.bfpp.ready.catch((error) => {
  console.error(error);
  find("main").append("This page cannot be drawn. It needs a browser of 2023 or later.");
});
