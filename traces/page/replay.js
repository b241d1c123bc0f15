// The replay of a step without contention: each task starts as soon as all it waits for have ended.
//
// Tasks are numbered topologically, and those of a lane in its order, so that one sweep gives the
// times. What a task costs is a sum of shares of the abstract costs, in the order of `choices.costs`.

function replay({ lane, peerLane, lanes, dependency, dependencyStart }, seconds) {
  const start = new Float64Array(lane.length), end = new Float64Array(lane.length);
  const free = new Float64Array(lanes.length);
  for (let task = 0; task < lane.length; task++) {
    let time = free[lane[task]];
    if (peerLane[task] >= 0) time = Math.max(time, free[peerLane[task]]);
    for (let at = dependencyStart[task]; at < dependencyStart[task + 1]; at++)
      time = Math.max(time, end[task - dependency[at]]);
    start[task] = time;
    end[task] = time + seconds[task];
    free[lane[task]] = end[task];
    if (peerLane[task] >= 0) free[peerLane[task]] = end[task];
  }
  return start;
}

// A listed step with the times that costs give it.
async function replayed(step, values) {
  const panel = await unpacked(step);
  const costs = choices.costs.map((name) => Number(values[name]));
  const prices = step.shares.map((shares) =>
    shares.reduce((sum, share, at) => sum + share * costs[at], 0));
  panel.duration = Float64Array.from(panel.price, (price) => prices[price]);
  panel.start = replay(panel, panel.duration);
  arranged(panel);
  const isCompute = panel.lanes.map(({ size }) => size === "compute");
  let busy = 0;
  for (let task = 0; task < panel.lane.length; task++)
    if (isCompute[panel.lane[task]]) busy += panel.duration[task];
  const bubble = busy ? (panel.length * panel.ranks) / busy - 1 : 0;
  panel.summary = [
    ["step time", inWords(panel.length, 4)], ["bubble ratio, idle / compute", `${(100 * bubble).toFixed(1)}%`],
    ...panel.summary, ["tasks", panel.lane.length.toLocaleString("en")],
  ];
  return panel;
}

// What the server would answer, of steps that are listed.
async function replayedAnswer(chosen) {
  const values = { ...choices.defaults, ...chosen };
  const names = [values.schedule, values.beside].filter(Boolean);
  const steps = names.map((schedule) =>
    choices.steps[choices.listed
      .map((name) => (name === "schedule" ? schedule : values[name])).join(" ")]);
  const missing = names[steps.findIndex((step) => !step)];
  if (missing) return { wrong: { reason: `${missing} cannot be divided so` } };
  const found = await Promise.all(steps.map((step) => replayed(step, values)));
  const [first, other] = [...found].sort((one, two) => one.length - two.length);
  const lead = !other ? "" : other.length > first.length * (1 + ROUNDING)
    ? `${first.title} is the fastest: ${inWords(first.length, 4)} a step. ${other.title} takes `
      + `${(100 * (other.length / first.length - 1)).toFixed(1)}% longer.`
    : `Both take as long: ${inWords(first.length, 4)} a step.`;
  const costs = choices.costs.map((name) => `${name} = ${values[name]}\n`).join("");
  const experiments = steps.map(({ experiment }, at) => [names[at], experiment + costs]);
  return { lead, panels: found, experiments, command: commandOf(values, names) };
}

function commandOf(values, names) {
  const options = [...choices.listed, ...choices.costs]
    .filter((name) => name !== "schedule" && values[name] !== "none")
    .map((name) => `--${name} ${values[name]}`).join(" ");
  return `bfpp compare ${names.join(" ")} ${options}`;
}
