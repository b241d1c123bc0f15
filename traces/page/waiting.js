// What an idle stretch waits for, on a click; and the critical path, switched on.

const STILL = 4; // pixels that a pointer may move in a click
const MOST_OUTLINED = 3000; // tasks of the critical path, on the whole page

// The idle stretch of a compute row at a time, or undefined.
function waitAt(panel, event, view) {
  const y = event.clientY - panel.figure.getBoundingClientRect().top - topOf(panel);
  const row = panel.rows.find(({ top, height }) => y >= top && y < top + height);
  const time = timeAt(panel, event, view);
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
  const table = facts.map(([label, value]) =>
    element("tr", {}, element("th", {}, label), element("td", {}, value)));
  return [
    element("b", {}, `Rank ${rank} waits ${inWords(end - begin, 4)}`),
    element("table", {}, ...table),
  ];
}

function closeWait() {
  for (const shown of document.querySelectorAll(".why, .waiting")) shown.remove();
}

// Says, until something else is clicked, what the clicked idle stretch waits for.
function openWait(panel, event, view) {
  closeWait();
  const found = waitAt(panel, event, view);
  if (!found) return;
  const { row, wait } = found, scale = plotWidth(panel) / (view[1] - view[0]);
  const at = (time) => panel.left + (Math.min(Math.max(time, view[0]), view[1]) - view[0]) * scale;
  const stretch = element("div", { className: "waiting" });
  stretch.style.left = `${at(wait.begin)}px`;
  stretch.style.top = `${topOf(panel) + row.top}px`;
  stretch.style.width = `${at(wait.end) - at(wait.begin)}px`;
  stretch.style.height = `${row.height}px`;
  const blocker = outlines(panel, wait.blocker, view, "waiting blocker");
  const why = element("div", { className: "why" }, ...describeWait(panel, wait));
  panel.figure.append(stretch, ...blocker, why);
  const room = panel.figure.clientWidth - why.offsetWidth - 8;
  why.style.left = `${Math.max(8, Math.min(at(wait.begin), room))}px`;
  why.style.top = `${topOf(panel) + row.top + row.height + 6}px`;
}

// Outlines the tasks of the critical path that the window shows.
function drawPath(panel, view) {
  for (const shown of panel.figure.querySelectorAll(".path")) shown.remove();
  if (!find(".critical input").checked) return 0;
  const shown = Array.from(panel.criticalPath).filter((task) =>
    panel.duration[task] > 0 && endOf(panel, task) > view[0] && panel.start[task] < view[1]);
  const apart = Math.ceil(shown.length / MOST_OUTLINED);
  const marks = shown.filter((_, at) => at % apart === 0)
    .flatMap((task) => outlines(panel, task, view, "path"));
  panel.figure.append(...marks);
  return marks.length;
}
