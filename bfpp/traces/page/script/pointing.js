// The tooltip of the task below the pointer, and its outline.

const NEAR = 3; // pixels by which the pointer may miss a task
const MOST_NAMED = 6; // dependencies named
const ROUNDING = 1e-9; // of the step: differences below it are none

// The row below the pointer, or undefined.
function rowAt(panel, { clientY }) {
  const y = clientY - panel.figure.getBoundingClientRect().top - topOf(panel);
  return panel.rows.find(({ top, height }) => y >= top && y < top + height);
}

// The row and the task below the pointer (or near it), and how many tasks that pixel holds.
function taskAt(panel, event) {
  const row = rowAt(panel, event);
  const time = timeAt(panel, event), pixel = (view[1] - view[0]) / plotWidth(panel);
  if (!row || time < view[0] || time > view[1]) return null;
  const away = (task) => Math.max(panel.start[task] - time, time - endOf(panel, task), 0);
  const place = firstAfter(panel, row.tasks, time);
  const around = [...row.tasks.slice(Math.max(0, place - 1), place + 1)];
  const [task] = around.sort((one, other) => away(one) - away(other));
  if (task === undefined || away(task) > NEAR * pixel) return null;
  const [first, after] = within(panel, row.tasks, time - pixel / 2, time + pixel / 2);
  return { row, task, crowd: after - first };
}

const tableOf = (facts) => element("table", {}, ...facts.map(([label, value]) =>
  element("tr", {}, element("th", {}, label), element("td", {}, `${value}`))));

function ranksOf(panel, task) {
  const { rank } = panel.lanes[panel.lane[task]], peer = panel.lanes[panel.peerLane[task]];
  return peer ? `${rank} to ${peer.rank}` : `${rank}`;
}

function nameOf(panel, task) {
  const words = [capital(panel.operations[panel.operation[task]])];
  if (panel.stage[task] >= 0) words.push(`stage ${panel.stage[task]}`);
  if (panel.unit[task] !== panel.stage[task]) words.push(`unit ${panel.unit[task]}`);
  if (panel.microbatch[task] >= 0) words.push(`micro-batch ${panel.microbatch[task]}`);
  return `${words.join(", ")}, rank ${ranksOf(panel, task)}`;
}

// The page's other timelines of the same graph.
const counterparts = (panel) =>
  panels.filter((other) => other !== panel && other.graph === panel.graph);

// Times of the same task in the other timelines, and their differences from this one.
function describeElsewhere(panel, task) {
  const compared = (seconds, more, less) =>
    Math.abs(seconds) > ROUNDING * step
      ? `${inWords(Math.abs(seconds), 4)} ${seconds > 0 ? more : less}` : "as here";
  return counterparts(panel).flatMap((other) => {
    const longer = other.duration[task] - panel.duration[task];
    const later = other.start[task] - panel.start[task];
    return [
      element("p", {}, `In the timeline "${other.title}"`),
      element("ul", {},
        element("li", {}, `Start ${inWords(other.start[task])}: `
          + compared(later, "later", "earlier")),
        element("li", {}, `Duration ${inWords(other.duration[task], 6)}: `
          + compared(longer, "longer", "shorter"))),
    ];
  });
}

function describe(panel, { row, task, crowd }) {
  const facts = [
    ["Stage", panel.stage[task]],
    ["Unit", panel.unit[task]],
    ["Micro-batch", panel.microbatch[task]],
    ["Rank", ranksOf(panel, task)],
    ["Lane", `${row.title}, of rank ${row.rank}`],
    ["Posted", panel.posted ? inWords(panel.posted[task]) : -1],
    ["Ready", panel.ready ? inWords(panel.ready[task]) : -1],
    ["Start", inWords(panel.start[task])],
    ["End", inWords(endOf(panel, task))],
    ["Duration", inWords(panel.duration[task], 6)],
  ].filter(([, value]) => value !== -1);
  const swatch = element("span");
  swatch.style.background = panel.colours[panel.colour[task]];
  const tip = [
    element("b", {}, swatch, capital(panel.operations[panel.operation[task]])),
    tableOf(facts),
    ...describeElsewhere(panel, task),
    ...describeWaits(panel, row, task),
  ];
  if (crowd > 1)
    tip.push(element("p", {}, `One of ${crowd} tasks in this pixel: zoom in to separate them.`));
  return tip;
}

function describeWaits(panel, row, task) {
  const ended = (other, last = "") =>
    `${nameOf(panel, other)}: ended ${last}at ${inWords(endOf(panel, other))}`;
  const list = (title, lines) => [element("p", {}, title), element("ul", {}, ...lines)];
  const dependencies = dependenciesOf(panel, task), before = taskBefore(panel, row, task);
  const more = dependencies.length - MOST_NAMED;
  const lines = dependencies.slice(0, MOST_NAMED).map((other, at) =>
    at || dependencies.length === 1
      ? element("li", {}, ended(other))
      : element("li", { className: "last" }, ended(other, "last, ")));
  if (more > 0) lines.push(element("li", {}, `and ${more} more`));
  if (!lines.length) lines.push(element("li", {}, "no other task"));
  const waits = list("Depends on", lines);
  if (before !== undefined)
    waits.push(...list("Before it in this lane", [element("li", {}, ended(before))]));
  return waits;
}

// Boxes around a task, as far as the window shows it: one in each row that has it.
function boxesOf(panel, task) {
  const scale = plotWidth(panel) / (view[1] - view[0]);
  const left = Math.max(panel.start[task], view[0]), right = Math.min(endOf(panel, task), view[1]);
  if (left >= right) return [];
  const lanes = [panel.lane[task], panel.peerLane[task]];
  return lanes.map((lane) => panel.rowOfLane.get(lane)).filter(Boolean).map((row) => ({
    row,
    left: panel.left + (left - view[0]) * scale - 1,
    top: topOf(panel) + row.top - 1,
    width: Math.max((right - left) * scale, 1) + 2,
    height: row.height + 2,
  }));
}

const outlines = (panel, task, className) =>
  boxesOf(panel, task).map((box) => placed(element("div", { className }), box));

function placed(made, { left, top, width, height }) {
  Object.assign(made.style,
    { left: `${left}px`, top: `${top}px`, width: `${width}px`, height: `${height}px` });
  return made;
}

let pointed = {};

function unpoint() {
  find(".tip").hidden = true;
  for (const mark of document.querySelectorAll(".mark")) mark.remove();
  pointed = {};
}

function point(panel, event) {
  const target = taskAt(panel, event);
  panel.figure.classList.toggle("idle", !target && Boolean(waitAt(panel, event)));
  if (target) showTask(panel, target, event);
  else if (!showMemory(panel, event)) unpoint();
}

// Outlines a task and its dependencies, and describes it next to a place on the screen.
function showTask(panel, shown, place) {
  if (pointed.task !== shown.task || pointed.row !== shown.row) {
    unpoint();
    pointed = shown;
    const others = dependenciesOf(panel, shown.task).slice(0, MOST_NAMED);
    panel.figure.append(
      ...others.flatMap((task) => outlines(panel, task, "mark dependency")),
      ...outlines(panel, shown.task, "mark task"),
    );
    for (const other of counterparts(panel))
      other.figure.append(...outlines(other, shown.task, "mark task"));
  }
  showTip(describe(panel, shown), place);
}

function showTip(words, { clientX, clientY }) {
  const tip = find(".tip");
  tip.replaceChildren(...words);
  tip.hidden = false;
  const { offsetWidth: width, offsetHeight: height } = tip;
  const fits = clientX + 16 + width < window.innerWidth;
  const left = fits ? clientX + 16 : clientX - 16 - width;
  const top = Math.min(clientY + 16, window.innerHeight - height - 8);
  tip.style.left = `${Math.max(8, left)}px`;
  tip.style.top = `${Math.max(8, top)}px`;
}

// A rank's memory at the pointer's time, part by part.
function showMemory(panel, event) {
  const row = rowAt(panel, event), time = timeAt(panel, event);
  if (row?.size !== "memory" || time < view[0] || time > view[1]) return false;
  const after = row.time.findIndex((moment) => moment > time);
  const at = (after < 0 ? row.time.length : Math.max(after, 1)) - 1;
  const parts = Object.entries(row.parts).filter(([, values]) => values[at] > 0);
  const facts = [["At", inWords(time, 4)], ...parts.map(([name, values]) =>
    [capital(name), `${Number(values[at].toPrecision(4))} ${panel.memoryUnit}`])];
  unpoint();
  const total = `${Number(totalAt(row, at).toPrecision(4))} ${panel.memoryUnit}`;
  showTip([element("b", {}, `Rank ${row.rank} holds ${total}`), tableOf(facts)], event);
  return true;
}
