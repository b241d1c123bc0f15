// Columns of tasks, and how the tasks in a window of time are found in them.

const endOf = (panel, task) => panel.start[task] + panel.duration[task];

async function unpack({ type, data }) {
  const text = atob(data);
  const bytes = new Uint8Array(text.length);
  for (let at = 0; at < text.length; at++) bytes[at] = text.charCodeAt(at);
  const inflated = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new globalThis[type](await new Response(inflated).arrayBuffer());
}

async function load({ columns, ...panel }) {
  const names = Object.keys(columns);
  const unpacked = await Promise.all(names.map((name) => unpack(columns[name])));
  names.forEach((name, at) => { panel[name] = unpacked[at]; });
  panel.dependencyStart = new Uint32Array(panel.start.length + 1);
  panel.dependencies.forEach((count, task) => {
    panel.dependencyStart[task + 1] = panel.dependencyStart[task] + count;
  });
  panel.length = panel.start.reduce((most, start, task) => Math.max(most, endOf(panel, task)), 0);
  panel.digits = `${panel.microbatch.reduce((most, number) => Math.max(most, number), 0)}`.length;
  tasksOfLanes(panel).forEach((tasks, at) => {
    const operations = new Set();
    for (const task of tasks) operations.add(panel.operation[task]);
    Object.assign(panel.lanes[at], { tasks, operations });
  });
  return panel;
}

// For each lane, its tasks that take time, by start; a transfer is on two lanes.
function tasksOfLanes({ lanes, lane, peerLane, start, duration }) {
  const visitAll = (visit) => {
    for (let task = 0; task < lane.length; task++) {
      if (!(duration[task] > 0)) continue;
      visit(lane[task], task);
      if (peerLane[task] >= 0) visit(peerLane[task], task);
    }
  };
  const counts = new Uint32Array(lanes.length);
  visitAll((at) => { counts[at]++; });
  const tasks = Array.from(counts, (count) => new Int32Array(count));
  counts.fill(0);
  visitAll((at, task) => { tasks[at][counts[at]++] = task; });
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
  return [first, Math.max(first, firstAfter(panel, tasks, to))];
}

// What a task waits for beside its lane, the last to end first.
function dependenciesOf(panel, task) {
  const [first, after] = panel.dependencyStart.subarray(task, task + 2);
  return Array.from(panel.dependency.subarray(first, after), (back) => task - back)
    .sort((one, other) => endOf(panel, other) - endOf(panel, one));
}

// The task drawn before another in its row, or undefined.
function taskBefore(panel, { tasks }, task) {
  let at = firstAfter(panel, tasks, panel.start[task]) - 1;
  while (at > 0 && tasks[at] !== task) at--;
  return tasks[at - 1];
}

const UNITS = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]];
const unitOf = (seconds) =>
  UNITS.find(([size]) => seconds >= size * 0.999999) ?? UNITS.at(seconds ? -1 : 0);

function inWords(seconds, digits = 9) {
  const [size, unit] = unitOf(Math.abs(seconds));
  return `${Number((seconds / size).toPrecision(digits))} ${unit}`;
}
