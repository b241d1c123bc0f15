// Columns of tasks, and the tasks in a window of time.
//
// A row holds the tasks of a lane that take time, by start, and its levels: of 1, 2, 4, 8 ... tasks
// that follow one another, their first start, last end, busy seconds, and mean colour weighted by
// these. Groups narrower than a pixel are drawn by their level, whatever their number of tasks.

const endOf = (panel, task) => panel.start[task] + panel.duration[task];

// The columns of a table, by name.
async function unpack({ columns, data }) {
  const text = atob(data);
  const bytes = new Uint8Array(text.length);
  for (let at = 0; at < text.length; at++) bytes[at] = text.charCodeAt(at);
  const inflated = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const buffer = await new Response(inflated).arrayBuffer();
  let begin = 0;
  return Object.fromEntries(columns.map(([name, type, length]) => {
    const column = new globalThis[type](buffer, begin, length);
    begin += column.byteLength;
    return [name, column];
  }));
}

const load = async (packed) => arranged(await unpacked(packed));

// A panel with its columns unpacked, as an object of its own.
async function unpacked({ columns, times, waits, memory, lanes, ...panel }) {
  const [what, when, waiting, curves] = await Promise.all([
    unpack(columns), unpack(times), waits ? unpack(waits) : null, memory ? curvesOf(memory) : [],
  ]);
  Object.assign(panel, what, when, { memory: curves, lanes: lanes.map((lane) => ({ ...lane })) });
  panel.waits = waiting ? waitsOf(waiting, panel.causeNames) : [];
  panel.paints = Uint32Array.from(panel.colours, paintOf);
  panel.dependencyStart = new Uint32Array(panel.dependencies.length + 1);
  panel.dependencies.forEach((count, task) => {
    panel.dependencyStart[task + 1] = panel.dependencyStart[task] + count;
  });
  panel.digits = `${panel.microbatch.reduce((most, number) => Math.max(most, number), 0)}`.length;
  return panel;
}

function waitsOf({ rank, begin, end, task, blocker, gain, causes, cause, seconds }, names) {
  let first = 0;
  return Array.from(causes, (count, at) => {
    const own = Array.from({ length: count }, (_, next) => [names[cause[first + next]], seconds[first + next]]);
    first += count;
    return { rank: rank[at], begin: begin[at], end: end[at], task: task[at], blocker: blocker[at],
      gain: gain[at] < 0 ? null : gain[at], causes: own };
  });
}

// The memory of each rank over time, as slices of the columns of all ranks.
async function curvesOf({ ranks, moments, ...packed }) {
  const [{ time }, parts] = await Promise.all([unpack(packed.time), unpack(packed.parts)]);
  let first = 0;
  return ranks.map((rank, at) => {
    const own = (column) => column.subarray(first, first + moments[at]);
    const curve = { rank, time: own(time), parts: Object.fromEntries(
      Object.entries(parts).map(([name, values]) => [name, own(values)])) };
    first += moments[at];
    return curve;
  });
}

// The panel with its rows, which follow from starts and durations.
function arranged(panel) {
  panel.length = panel.start.reduce((most, start, task) => Math.max(most, endOf(panel, task)), 0);
  tasksOfLanes(panel).forEach((tasks, at) => {
    const operations = new Set();
    for (const task of tasks) operations.add(panel.operation[task]);
    const levels = levelsOf(panel, tasks), passes = passesAmong(panel, panel.lanes[at], tasks);
    Object.assign(panel.lanes[at], { tasks, operations, levels, passes });
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

// The places in a row of compute where a pass through several units begins, and the row's end. A
// unit goes on with the pass if no gap before it is longer than the one that it follows.
function passesAmong({ operation, microbatch, start, duration }, { size }, tasks) {
  const begins = [];
  if (size !== "compute") return Int32Array.of(0);
  for (let at = 0; at < tasks.length; at++) {
    const task = tasks[at], before = tasks[at - 1];
    const goesOn = at > 0 && operation[task] === operation[before]
      && microbatch[task] === microbatch[before]
      && start[task] - start[before] <= 2 * duration[before];
    if (!goesOn) begins.push(at);
  }
  begins.push(tasks.length);
  return Int32Array.from(begins);
}

function levelsOf({ start, duration, colour, paints }, tasks) {
  const level = emptyLevel(tasks.length);
  for (let at = 0; at < tasks.length; at++) {
    const task = tasks[at];
    level.starts[at] = start[task];
    level.ends[at] = start[task] + duration[task];
    level.paints[at] = paints[colour[task]];
    level.seconds[at] = duration[task];
  }
  const levels = [level];
  while (levels.at(-1).paints.length > 1) levels.push(halved(levels.at(-1)));
  return levels;
}

const emptyLevel = (size) => ({
  starts: new Float64Array(size), ends: new Float64Array(size),
  paints: new Uint32Array(size), seconds: new Float32Array(size),
});

// The next level: each two neighbours as one; the last is alone where they are odd.
function halved({ starts, ends, paints, seconds }) {
  const next = emptyLevel((paints.length + 1) >> 1);
  for (let at = 0; at < next.paints.length; at++) {
    const one = 2 * at, other = one + 1 < paints.length ? one + 1 : one;
    const more = other === one ? 0 : seconds[other];
    next.starts[at] = starts[one];
    next.ends[at] = ends[other];
    next.seconds[at] = seconds[one] + more;
    next.paints[at] = mixed(paints[one], paints[other], more / next.seconds[at]);
  }
  return next;
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

// The dependencies of a task, the last to end first.
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
