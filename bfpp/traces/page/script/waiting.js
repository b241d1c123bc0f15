// Causes of an idle stretch, on a click; and the critical path, on a switch.

// The idle stretch of a compute row at a time, or undefined.
function waitAt(panel, event) {
  const row = rowAt(panel, event), time = timeAt(panel, event);
  const wait = row?.size === "compute" && panel.waits.find(({ rank, begin, end }) =>
    rank === row.rank && begin <= time && time < end);
  return wait ? { row, wait } : undefined;
}

const named = (panel, task) => nameOf(panel, task).toLowerCase();

function describeWait(panel, { rank, begin, end, task, blocker, gain, causes }) {
  const until = task < 0 ? "the step ends" : `it begins ${named(panel, task)}`;
  const facts = [
    ["From", inWords(begin)],
    ["Until", `${inWords(end)}, when ${until}`],
    ["Waits for", named(panel, blocker)],
    ...causes.map(([cause, seconds]) => [capital(cause), inWords(seconds, 4)]),
  ];
  if (gain !== null) facts.push(["Without it", `the step ends ${inWords(gain, 4)} earlier`]);
  return [element("b", {}, `Rank ${rank} waits ${inWords(end - begin, 4)}`), tableOf(facts)];
}

function closeWait() {
  for (const shown of document.querySelectorAll(".why, .waiting")) shown.remove();
}

// Shows the causes of the clicked idle stretch, until something else is clicked.
function openWait(panel, event) {
  closeWait();
  const target = waitAt(panel, event);
  if (target) explainWait(panel, target);
}

function explainWait(panel, { row, wait }) {
  const scale = plotWidth(panel) / (view[1] - view[0]);
  const at = (time) => panel.left + (Math.min(Math.max(time, view[0]), view[1]) - view[0]) * scale;
  const stretch = placed(element("div", { className: "waiting" }), {
    left: at(wait.begin), top: topOf(panel) + row.top,
    width: at(wait.end) - at(wait.begin), height: row.height,
  });
  const blocker = outlines(panel, wait.blocker, "waiting blocker");
  const why = element("div", { className: "why", role: "status" }, ...describeWait(panel, wait));
  panel.figure.append(stretch, ...blocker, why);
  const room = panel.figure.clientWidth - why.offsetWidth - 8;
  why.style.left = `${Math.max(8, Math.min(at(wait.begin), room))}px`;
  why.style.top = `${topOf(panel) + row.top + row.height + 6}px`;
}

// Outlines the tasks of the critical path that the window shows; those of one pixel once.
function drawPath(panel, pen, look) {
  const reached = new Map();
  for (const task of panel.criticalPath)
    for (const { row, left, top, width, height } of boxesOf(panel, task)) {
      if (left + width < (reached.get(row) ?? 0) + 1) continue;
      reached.set(row, left + width);
      pen.frame(left, top, width, height, look.wait);
    }
}
