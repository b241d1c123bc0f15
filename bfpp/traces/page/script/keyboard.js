// Keyboard control of all that the mouse does: the window of time, tasks, and idle stretches.

const KEYS = {
  "+": () => zoom(2 / 3), "=": () => zoom(2 / 3), "-": () => zoom(3 / 2),
  ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2),
  0: showStep, Escape: () => { closeWait(); unpoint(); return showStep(); },
  "/": () => find(".find input").focus(),
  n: () => nextHit(), N: () => nextHit(false),
};

const KEYS_OF_FIGURE = {
  ArrowDown: (panel) => chooseRow(panel, 1), ArrowUp: (panel) => chooseRow(panel, -1),
  ".": (panel) => chooseTask(panel, 1), ",": (panel) => chooseTask(panel, -1),
  i: (panel) => chooseWait(panel, 1), I: (panel) => chooseWait(panel, -1),
};

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.matches?.("input, select, textarea, summary")) return;
  const panel = panels.find(({ figure }) => figure === event.target);
  const action = (panel && KEYS_OF_FIGURE[event.key]) ?? KEYS[event.key];
  if (!action) return;
  event.preventDefault();
  action(panel);
}

// Describes a task next to its place, as the pointer would.
function choose(panel, row, task) {
  closeWait();
  panel.chosen = { row, task };
  const box = panel.figure.getBoundingClientRect();
  const share = (Math.max(panel.start[task], view[0]) - view[0]) / (view[1] - view[0]);
  showTask(panel, { row, task, crowd: 1 }, {
    clientX: box.left + panel.left + share * plotWidth(panel),
    clientY: box.top + topOf(panel) + row.top + row.height,
  });
}

async function chooseTask(panel, by) {
  const row = panel.rows.find(({ tasks }) => tasks === panel.chosen?.row.tasks)
    ?? panel.rows.find(({ tasks }) => tasks.length);
  const place = panel.chosen ? row.tasks.indexOf(panel.chosen.task)
    : firstAfter(panel, row.tasks, view[0]) - (by > 0 ? 1 : 0);
  const task = row.tasks[Math.min(Math.max(place + by, 0), row.tasks.length - 1)];
  await bringIntoView(panel, task);
  choose(panel, row, task);
}

// The next row that has tasks, at the task nearest in time.
function chooseRow(panel, by) {
  const rows = panel.rows.filter(({ tasks }) => tasks.length);
  const at = rows.findIndex(({ tasks }) => tasks === panel.chosen?.row.tasks);
  const row = rows[Math.min(Math.max(at + by, 0), rows.length - 1)];
  const time = panel.chosen ? panel.start[panel.chosen.task] : view[0];
  choose(panel, row, row.tasks[Math.max(firstAfter(panel, row.tasks, time) - 1, 0)]);
}

async function chooseWait(panel, by) {
  if (!panel.waits.length) return;
  panel.wait = ((panel.wait ?? (by > 0 ? -1 : 0)) + by + panel.waits.length) % panel.waits.length;
  const wait = panel.waits[panel.wait];
  if (wait.begin < view[0] || wait.end > view[1]) await showStep();
  const row = panel.rows.find(({ rank, size }) => rank === wait.rank && size === "compute");
  closeWait();
  unpoint();
  explainWait(panel, { row, wait });
}
