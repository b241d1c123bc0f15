// A panel drawn by a pen: rows from the top down in pixels, seconds across.

const TICK = 110; // pixels between ticks, at least
const LABEL = 56; // pixels that a tick's label takes, about: at the right end it is drawn within
const SMALLEST = 6; // height of letters in pixels
const TALL = 720; // a panel higher than this has a second time axis, on top
const NARROW = 640; // a page narrower than this names ranks alone, and briefly
const FONT = "system-ui, -apple-system, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif";
const RIGHT = 12, BELOW = 30, ABOVE = 8; // margins in pixels

const isTall = (panel) => panel.height > TALL;
const topOf = (panel) => (isTall(panel) ? BELOW : ABOVE);
const heightOf = (panel) => topOf(panel) + panel.height + BELOW;
const plotWidth = (panel) => Math.max(160, panel.figure.clientWidth - panel.left - RIGHT);
const isNamed = (height) => height >= 10;

// The colours of the page, light or dark.
function lookOf() {
  const style = getComputedStyle(document.documentElement);
  const names = ["ink", "quiet", "line", "idle", "paper", "memory", "wait"];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

// Tops and heights of lanes: compute in full, gathers and reductions half as high, channels less.
function placeRows(panel, { channels, memory }, ranksOnPage) {
  const compute = Math.max(14, Math.min(36, Math.round(400 / ranksOnPage)));
  const data = Math.max(7, Math.round(compute * 0.5));
  const channel = Math.max(6, Math.round(compute * 0.4));
  const heights = { compute, data, channel, memory: Math.max(18, compute) };
  const rankGap = Math.max(4, Math.round(compute * 0.3)), rowGap = compute > 20 ? 2 : 1;
  let top = 0, rank = null;
  const rows = panel.lanes.map((lane, at) => ({ ...lane, lane: at }))
    .filter(({ tasks, size }) => tasks.length && (size !== "channel" || channels));
  const curves = memory ? panel.memory.map(({ rank, time, parts }) => ({
    rank, time, parts, size: "memory", title: panel.memoryUnit, tasks: [], levels: [], operations: new Set(),
  })) : [];
  const ordered = [...rows, ...curves].sort((one, other) => one.rank - other.rank);
  panel.rows = ordered.map((row) => {
    const leads = row.rank !== rank, height = heights[row.size];
    top += leads ? rankGap : rowGap;
    rank = row.rank;
    top += height;
    return { ...row, leads, top: top - height, height };
  });
  panel.rowOfLane = new Map(panel.rows.map((row) => [row.lane, row]));
  panel.height = top + rankGap;
  const longNames = panel.rows.some(({ size }) => size === "channel" && isNamed(channel));
  panel.isNarrow = document.documentElement.clientWidth < NARROW;
  panel.left = panel.isNarrow ? 30 : longNames ? 176 : 80;
}

const totalAt = ({ parts }, at) =>
  Object.values(parts).reduce((sum, part) => sum + part[at], 0);

const mostMemory = (panel) => Math.max(...panel.memory.map((curve) =>
  curve.time.reduce((most, _, at) => Math.max(most, totalAt(curve, at)), 0)));

function drawPanel(panel, pen, view, width, look) {
  panel.counted = new Set();
  drawTime(panel, pen, view, width, look);
  const most = panel.rows.some(({ size }) => size === "memory") ? mostMemory(panel) : 0;
  for (const row of panel.rows) {
    const top = topOf(panel) + row.top;
    drawName(panel, pen, row, top, look);
    if (row.size === "memory") drawMemory(panel, pen, row, { view, width, top, most, look });
    else drawTasks(panel, pen, row, { view, width, top, look });
  }
  if (isOn("critical")) drawPath(panel, pen, look);
}

function drawName(panel, pen, { leads, rank, title, height, size }, top, look) {
  const at = panel.left - 8, middle = top + height / 2;
  if (leads) pen.text(panel.isNarrow ? `${rank}` : `Rank ${rank}`, at, middle, 12, "right", look.ink);
  else if (!panel.isNarrow && isNamed(height) && size !== "data")
    pen.text(title, at, middle, 10, "right", look.quiet);
}

function drawTasks(panel, pen, row, { view: [from, to], width, top, look }) {
  const pixels = Math.round(width * pen.scale), pixel = (to - from) / pixels;
  const { line, wide } = paintRow(panel, row, from, pixel, pixels);
  pen.row(panel.left, top, row.height, line, look);
  const passes = [...passesOf(panel, wide), ...narrowPasses(panel, row, from, pixel, pixels)];
  for (const [task, begin, end] of passes) {
    const room = (end - begin) / pen.scale, [label, digits, counts] = labelOf(panel, task);
    const letters = Math.min(12, row.height - 3, (room - 4) / (digits * 0.6));
    if (letters < SMALLEST || !label) continue;
    const x = panel.left + (begin + end) / 2 / pen.scale, colour = panel.inks[panel.colour[task]];
    pen.text(label, x, top + row.height / 2 + 0.5, letters, "center", colour);
    panel.counted.add(counts);
  }
}

// Tasks by pass: it has one number, as in figures for print.
function passesOf(panel, wide) {
  const passes = [];
  for (const task of wide)
    if (carriesOn(panel, passes.at(-1), task)) passes.at(-1)[2] = task[2];
    else passes.push([...task]);
  return passes;
}

// Passes whose units are narrower than a pixel in the mean, if there is room for numbers at all.
function narrowPasses(panel, { tasks, passes }, from, pixel, pixels) {
  const narrow = [], shown = within(panel, tasks, from, from + pixel * pixels);
  let [at, after] = shown.map((place) => passOf(passes, place));
  if (after - at > pixels / SMALLEST) return narrow;
  for (; at < Math.min(after + 1, passes.length - 1); at++) {
    const units = passes[at + 1] - passes[at], first = tasks[passes[at]];
    const left = (panel.start[first] - from) / pixel;
    const right = (endOf(panel, tasks[passes[at + 1] - 1]) - from) / pixel;
    if (right - left <= units && left < pixels && right > 0)
      narrow.push([first, Math.max(left, 0), Math.min(right, pixels)]);
  }
  return narrow;
}

// The pass that a place in a row is part of.
function passOf(passes, place) {
  let low = 0, high = passes.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (passes[middle] > place) high = middle - 1; else low = middle;
  }
  return low;
}

// A task's label, the digits for which there must be room (the same in the whole row), and the kind
// of number.
function labelOf(panel, task) {
  const microbatch = panel.microbatch[task], unit = panel.unit[task];
  if (microbatch >= 0) return [`${microbatch}`, panel.digits, "microbatch"];
  return unit >= 0 ? [`${unit}`, `${unit}`.length, "unit"] : ["", 1];
}

// A rank's memory over time, to one scale for all ranks.
function drawMemory(panel, pen, row, { view: [from, to], width, top, most, look }) {
  const bottom = top + row.height, across = width / (to - from);
  const x = (time) => panel.left + Math.min(Math.max((time - from) * across, 0), width);
  const points = [[panel.left, bottom]];
  row.time.forEach((time, at) => {
    const until = row.time[at + 1] ?? panel.length;
    if (until < from || time > to) return;
    const y = bottom - (row.height * totalAt(row, at)) / (most || 1);
    points.push([x(time), y], [x(until), y]);
  });
  points.push([points.at(-1)[0], bottom]);
  pen.rect(panel.left, top, width, row.height, look.idle);
  pen.area(points, look.memory);
}

function drawTime(panel, pen, view, width, look) {
  const top = topOf(panel), bottom = top + panel.height;
  const places = isTall(panel) ? [bottom + 14, top - 14] : [bottom + 14];
  const end = panel.left + width;
  for (const [time, words] of timeTicks(view, width)) {
    const x = panel.left + ((time - view[0]) / (view[1] - view[0])) * width;
    pen.rect(Math.round(x), top, 1, panel.height + 4, look.line);
    const [at, align] = end - x < LABEL / 2 ? [end, "right"] : [x, "center"];
    for (const y of places) pen.text(words, at, y, 11.5, align, look.quiet);
  }
}

// Round times and their names, in the unit of the later end of the window.
function timeTicks([from, to], pixels) {
  const least = ((to - from) * TICK) / pixels, power = 10 ** Math.floor(Math.log10(least));
  const apart = power * [1, 2, 5, 10].find((round) => round * power >= least * 0.999999);
  const [size, unit] = unitOf(to);
  const digits = Math.min(15, Math.max(0, Math.ceil(-Math.log10(apart / size) - 1e-6)));
  const ticks = [];
  for (let at = Math.ceil(from / apart - 1e-6); at <= to / apart + 1e-6; at++)
    ticks.push([at * apart, `${((at * apart) / size).toFixed(digits)} ${unit}`]);
  return ticks;
}
