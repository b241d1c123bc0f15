// Replay of a step without contention: each task starts when the last of its predecessors ends.
//
// Tasks are numbered topologically, and those of a lane in its order, so that one sweep gives the
// times, and the blocker of each task. A task's cost is a sum of shares of the abstract costs,
// in the order of `choices.costs`.

function replay({ lane, peerLane, lanes, dependency, dependencyStart }, seconds) {
  const start = new Float64Array(lane.length), end = new Float64Array(lane.length);
  const blocker = new Int32Array(lane.length), latest = new Int32Array(lanes.length).fill(-1);
  let last = 0;
  for (let task = 0; task < lane.length; task++) {
    let after = latest[lane[task]];
    const wait = (other) => {
      if (after < 0 || end[other] > end[after] || (end[other] === end[after] && other > after))
        after = other;
    };
    if (peerLane[task] >= 0 && latest[peerLane[task]] >= 0) wait(latest[peerLane[task]]);
    for (let at = dependencyStart[task]; at < dependencyStart[task + 1]; at++)
      wait(task - dependency[at]);
    blocker[task] = after;
    start[task] = after < 0 ? 0 : end[after];
    end[task] = start[task] + seconds[task];
    latest[lane[task]] = task;
    if (peerLane[task] >= 0) latest[peerLane[task]] = task;
    if (end[task] >= end[last]) last = task;
  }
  const criticalPath = [];
  for (let task = last; task >= 0; task = blocker[task]) criticalPath.push(task);
  return { start, criticalPath: criticalPath.reverse() };
}

// The chosen model, or nothing where costs are abstract.
const modelOf = ({ costs, model }) => (costs === "model" ? model : "");

const isOpening = (values) =>
  choices.costs.every((name) => Number(values[name]) === Number(choices.defaults[name]));

// A listed step: with the engine's times, or replayed with the chosen costs.
async function timelineOf(step, values) {
  const model = modelOf(values);
  if (model || isOpening(values)) return load({ ...step, ...step.known[model] });
  const panel = await unpacked(step);
  const costs = choices.costs.map((name) => Number(values[name]));
  const prices = step.shares.map((shares) =>
    shares.reduce((sum, share, at) => sum + share * costs[at], 0));
  panel.duration = Float64Array.from(panel.price, (price) => prices[price]);
  Object.assign(panel, replay(panel, panel.duration));
  arranged(panel);
  const isCompute = panel.lanes.map(({ size }) => size === "compute");
  let busy = 0;
  for (let task = 0; task < panel.lane.length; task++)
    if (isCompute[panel.lane[task]]) busy += panel.duration[task];
  const bubble = busy ? (panel.length * panel.ranks) / busy - 1 : 0;
  const ratio = `${(100 * bubble).toFixed(1)}%`;
  panel.headline = [`${inWords(panel.length, 4)} a step`, `bubble ratio ${ratio}`];
  panel.summary = [
    ["step time", inWords(panel.length, 4)], ["bubble ratio, all idle / compute", ratio],
    ...panel.summary, ["tasks", panel.lane.length.toLocaleString("en")],
  ];
  return panel;
}

// The summary that the server would give: the fastest, the distance of others, which do not fit.
function verdict(results) {
  const said = results.filter(({ shortage }) => shortage)
    .map(({ name, shortage }) => `${name} does not fit: ${shortage}`);
  const [first, ...others] = results.filter(({ shortage }) => !shortage)
    .sort((one, two) => one.length - two.length);
  if (results.length > 1 && first?.length) {
    const behind = others.map(({ name, length }) => `${name} takes ${length > first.length * (1 + ROUNDING)
      ? `${(100 * (length / first.length - 1)).toFixed(1)}% longer` : "as long"}`);
    const which = others.length ? "the fastest" : "the only one that fits";
    said.unshift(`${first.name} is ${which}: ${inWords(first.length, 4)} a step`,
      ...(others.length ? [behind.join(", ")] : []));
  }
  return said.map((each) => `${each}.`).join(" ");
}

// The answer that the server would give, for listed steps.
async function replayedAnswer(chosen) {
  const values = { ...choices.defaults, ...chosen };
  const names = [values.schedule, values.beside].filter(Boolean);
  const steps = names.map((schedule) =>
    choices.steps[choices.listed
      .map((name) => (name === "schedule" ? schedule : values[name])).join(" ")]);
  const missing = names[steps.findIndex((step) => !step)];
  if (missing) return { wrong: { reason: `${missing} does not support these sizes` } };
  const model = modelOf(values);
  if (!steps.every(({ known }) => model in known)) {
    const sizes = Object.entries(choices.cases).map(([name, each]) => `${name} ${each.join(" or ")}`);
    return { wrong: { field: "model", reason: `is predicted for ${sizes.join(", ")}` } };
  }
  const timelines = await Promise.all(steps.map((step) => timelineOf(step, values)));
  const lead = verdict(timelines.map(({ length }, at) =>
    ({ name: names[at], length, shortage: model ? steps[at].known[model].shortage : "" })));
  const said = model ? { model, ...choices.models[model] }
    : Object.fromEntries(choices.costs.map((name) => [name, Number(values[name])]));
  const costs = Object.entries(said).map(([name, value]) => `${name} = ${value}\n`).join("");
  const experiments = steps.map(({ known, experiment }, at) =>
    [names[at], model ? known[model].experiment : experiment + costs]);
  return { lead, panels: timelines, experiments, command: commandOf(values, names, said) };
}

function commandOf(values, names, said) {
  const listed = choices.listed.filter((name) => name !== "schedule" && values[name] !== "none")
    .map((name) => [name, values[name]]);
  const options = [...listed, ...Object.entries(said)].map(([name, value]) => `--${name} ${value}`);
  return ["bfpp compare", ...names, ...options].join(" ");
}
