// A panel as a Plotly figure: rows from the top down in pixels, seconds across.

const TICK = 110; // pixels between ticks, at least
const SMALLEST = 7.5; // height of letters in pixels
const TALL = 720; // a panel higher than this has a second time axis, on top
const FONT = "system-ui, -apple-system, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif";
const MARGIN = { r: 24, b: 30, t: 8 };
const GRID = "#e3e7ec", FAINT = "#8a94a0";

const isTall = (panel) => panel.height > TALL;
const topOf = (panel) => (isTall(panel) ? MARGIN.b : MARGIN.t);
const plotWidth = (panel) => Math.max(200, panel.figure.clientWidth - panel.left - MARGIN.r);

// Where each lane is drawn: compute high, gathers and reductions half, channels less.
function placeRows(panel, withChannels, ranksOnPage) {
  const compute = Math.max(14, Math.min(36, Math.round(400 / ranksOnPage)));
  const data = Math.max(7, Math.round(compute * 0.5));
  const channel = Math.max(6, Math.round(compute * 0.4));
  const heights = { compute, data, channel };
  const rankGap = Math.max(4, Math.round(compute * 0.3)), rowGap = compute > 20 ? 2 : 1;
  let top = 0, rank = null;
  panel.rows = [];
  for (const lane of panel.lanes) {
    if (!lane.tasks.length || (lane.size === "channel" && !withChannels)) continue;
    const leads = lane.rank !== rank, height = heights[lane.size];
    top += leads ? rankGap : rowGap;
    panel.rows.push({ ...lane, leads, top, height });
    rank = lane.rank;
    top += height;
  }
  panel.height = top + rankGap;
  const longNames = panel.rows.some(({ size }) => size === "channel") && isNamed(channel);
  panel.left = longNames ? 176 : 80;
}

const isNamed = (height) => height >= 10;

function rowTicks(rows) {
  const named = rows.filter(({ leads, height }) => leads || isNamed(height));
  const ticktext = named.map(({ leads, rank, title }) =>
    leads ? `Rank ${rank}` : `<span style="font-size:10px;color:${FAINT}">${title}</span>`);
  return { tickvals: named.map(({ top, height }) => top + height / 2), ticktext };
}

// Each task of the window as a bar.
function bars(panel, places, [from, to]) {
  const pixel = (to - from) / plotWidth(panel);
  const base = [], x = [], y = [], width = [], text = [], line = [];
  const colour = [], ink = [], size = [];
  panel.rows.forEach((row, at) => {
    const [first, after] = places[at];
    for (let place = first; place < after; place++) {
      const task = row.tasks[place], left = Math.max(panel.start[task], from);
      const length = Math.max(Math.min(endOf(panel, task), to) - left, pixel);
      const [label, digits] = labelOf(panel, task);
      const letters = Math.min(12, row.height - 3, (length / pixel - 4) / (digits * 0.6));
      base.push(left);
      x.push(length);
      y.push(row.top + row.height / 2);
      width.push(row.height);
      text.push(letters < SMALLEST ? "" : label);
      size.push(Math.max(letters, 1));
      line.push(length / pixel > 4 ? 1 : 0);
      colour.push(panel.colours[panel.colour[task]]);
      ink.push(panel.inks[panel.colour[task]]);
    }
  });
  return {
    type: "bar", orientation: "h", base, x, y, width, text, hoverinfo: "skip",
    marker: { color: colour, line: { color: "#ffffff", width: line } },
    textposition: "inside", insidetextanchor: "middle", textangle: 0, constraintext: "none",
    insidetextfont: { family: FONT, color: ink, size },
  };
}

// A task's label, and the digits for which there must be room (the same in the whole row).
function labelOf(panel, task) {
  const microbatch = panel.microbatch[task], unit = panel.unit[task];
  if (microbatch >= 0) return [`${microbatch}`, panel.digits];
  return unit >= 0 ? [`${unit}`, `${unit}`.length] : ["", 1];
}

// The tasks of the window as one image, with a column for each pixel of the plot.
function heatmap(panel, places, [from, to]) {
  const pixels = Math.round(plotWidth(panel)), pixel = (to - from) / pixels;
  const canvas = element("canvas", { width: pixels, height: panel.height });
  const brush = canvas.getContext("2d");
  panel.rows.forEach(({ tasks, top, height }, at) => {
    const colours = majority(panel, tasks, places[at], { from, pixel, pixels });
    for (let left = 0, right = 0; left < pixels; left = right) {
      while (right < pixels && colours[right] === colours[left]) right++;
      if (colours[left] < 0) continue;
      brush.fillStyle = panel.colours[colours[left]];
      brush.fillRect(left, top, right - left, height);
    }
  });
  return {
    type: "image", source: canvas.toDataURL(), hoverinfo: "skip",
    x0: from + pixel / 2, dx: pixel, y0: 0.5, dy: 1,
  };
}

// For each pixel, the number of the colour that fills most of it, or -1.
function majority(panel, tasks, [first, after], { from, pixel, pixels }) {
  const colours = new Int16Array(pixels).fill(-1);
  const votes = new Float64Array(panel.colours.length), voted = [];
  let here = -1;
  const count = () => {
    let most = 0;
    for (const colour of voted) {
      if (votes[colour] > most) { most = votes[colour]; colours[here] = colour; }
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
  return colours;
}

function layout(panel, view) {
  const tracks = panel.rows.map(({ top, height }) => `M0,${top}H1V${top + height}H0Z`).join("");
  const time = {
    range: [...view], ...timeTicks(view, plotWidth(panel)), gridcolor: GRID, zeroline: false,
    ticks: "outside", tickcolor: GRID, ticklen: 4, tickfont: { size: 11.5, color: panel.ink },
  };
  const rows = {
    range: [panel.height, 0], ...rowTicks(panel.rows), fixedrange: true, scaleanchor: false,
    showgrid: false, zeroline: false, ticks: "", ticklabelstandoff: 5,
    tickfont: { size: panel.rows.some(({ height }) => height > 16) ? 12.5 : 11 },
  };
  const top = { ...time, overlaying: "x", matches: "x", side: "top", showgrid: false };
  return {
    width: panel.figure.clientWidth, height: topOf(panel) + panel.height + MARGIN.b,
    margin: { ...MARGIN, t: topOf(panel), l: panel.left, pad: 0 },
    font: { family: FONT, size: 12, color: "#16202c" },
    paper_bgcolor: "#fff", plot_bgcolor: "#fff",
    showlegend: false, hovermode: false, dragmode: "zoom", barmode: "overlay", bargap: 0,
    xaxis: time, yaxis: rows, ...(isTall(panel) && { xaxis2: top }),
    shapes: [{
      type: "path", path: tracks, xref: "paper", yref: "y", layer: "below",
      fillcolor: panel.idle, line: { width: 0 },
    }],
  };
}

// Round times as ticks, in the unit of the later end of the window.
function timeTicks([from, to], pixels) {
  const least = ((to - from) * TICK) / pixels, power = 10 ** Math.floor(Math.log10(least));
  const apart = power * [1, 2, 5, 10].find((round) => round * power >= least * 0.999999);
  const [size, unit] = unitOf(to);
  const digits = Math.min(15, Math.max(0, Math.ceil(-Math.log10(apart / size) - 1e-6)));
  const tickvals = [];
  for (let at = Math.ceil(from / apart - 1e-6); at <= to / apart + 1e-6; at++)
    tickvals.push(at * apart);
  const ticktext = tickvals.map((time) => `${(time / size).toFixed(digits)} ${unit}`);
  return { tickmode: "array", tickvals, ticktext };
}
