// Search for tasks: by operation and numbers (`backward micro-batch 3 rank 1`), or by action (`2B3`).

const AS_IN_ORDERS = /^(\d+)(F|B|I|W)(\d+)$/i;
const OPERATION_OF = { F: "forward", B: "backward", I: "backward-input", W: "backward-weight" };
const KINDS = { stage: "stage", unit: "unit", "micro-batch": "microbatch", microbatch: "microbatch" };

let hits = [], hit = -1; // matches, as [panel, task], and the one shown

// A query: numbers by column, a rank, and words of the operation.
function readQuery(text) {
  const words = text.toLowerCase().replaceAll(",", " ").split(/\s+/).filter(Boolean);
  const wanted = { columns: {}, rank: null, words: [], operation: null };
  for (let at = 0; at < words.length; at++) {
    const number = /^\d+$/.test(words[at + 1] ?? "") ? Number(words[at + 1]) : null;
    const short = AS_IN_ORDERS.exec(words[at]);
    if (short) {
      wanted.columns.stage = Number(short[1]);
      wanted.columns.microbatch = Number(short[3]);
      wanted.operation = OPERATION_OF[short[2].toUpperCase()];
    } else if (words[at] === "rank" && number !== null) wanted.rank = Number(words[++at]);
    else if (words[at] in KINDS && number !== null) wanted.columns[KINDS[words[at]]] = Number(words[++at]);
    else wanted.words.push(words[at]);
  }
  return wanted;
}

function tasksNamed(panel, { columns, rank, words, operation }) {
  const fits = panel.operations.map((title) => operation
    ? title.replace(" ", "-") === operation || title === operation
    : words.every((word) => title.includes(word)));
  const ofRank = panel.lanes.map((lane) => rank === null || lane.rank === rank);
  const numbers = Object.entries(columns).map(([name, value]) => [panel[name], value]);
  const matches = [];
  for (let task = 0; task < panel.lane.length; task++) {
    if (!fits[panel.operation[task]] || !(panel.duration[task] > 0)) continue;
    if (!ofRank[panel.lane[task]] && !(panel.peerLane[task] >= 0 && ofRank[panel.peerLane[task]]))
      continue;
    if (numbers.every(([column, value]) => column[task] === value)) matches.push(task);
  }
  return matches.sort((one, other) => panel.start[one] - panel.start[other]);
}

function findTasks(text) {
  const wanted = readQuery(text), asks = text.trim().length > 0;
  hits = asks ? panels.flatMap((panel) => tasksNamed(panel, wanted).map((task) => [panel, task])) : [];
  hit = -1;
  const count = hits.length.toLocaleString("en"), noun = hits.length === 1 ? "match" : "matches";
  find(".matches").textContent = asks ? `${count} ${noun}` : "";
}

// Shows the next match in the middle of the window, and describes it.
async function nextHit(forward = true) {
  if (!hits.length) return;
  hit = (hit + (forward ? 1 : hits.length - 1) + hits.length) % hits.length;
  const [panel, task] = hits[hit];
  await bringIntoView(panel, task);
  find(".matches").textContent = `${hit + 1} of ${hits.length.toLocaleString("en")}`;
  const row = panel.rows.find(({ tasks }) => tasks.includes(task));
  if (row) choose(panel, row, task);
}

// The window around a task: unchanged if it shows the task well, else zoomed in until it does.
function bringIntoView(panel, task) {
  const begin = panel.start[task], end = endOf(panel, task), length = end - begin;
  const span = Math.min(view[1] - view[0], length * 40), middle = (begin + end) / 2;
  const isSeen = begin >= view[0] && end <= view[1] && length * 200 > view[1] - view[0];
  return isSeen ? redraw() : show(middle - span / 2, middle + span / 2);
}
