// The window of time: zoomed and moved by mouse, wheel, fingers and keys, alike for all panels.

const MARGINS = 0.01; // of the step, before and after it
const DEEPEST = 1e-9; // of the step, in the closest view
const STILL = 4; // pixels that a pointer may move in a click

let step = 1; // seconds of the longest panel
let view = [0, 1]; // the window of time, in seconds

function clampedView(from, to) {
  const span = Math.min(Math.max(to - from, step * DEEPEST), step * (1 + 2 * MARGINS));
  const start = Math.min(Math.max(from, -step * MARGINS), step * (1 + MARGINS) - span);
  return [start, start + span];
}

function show(from, to) {
  view = clampedView(from, to);
  return redraw();
}

const isWhole = () => view[1] - view[0] >= step * (1 + 2 * MARGINS) * 0.999999;
const showStep = () => show(-Infinity, Infinity);
const move = (share) => show(...view.map((end) => end + share * (view[1] - view[0])));
const zoom = (factor, around = (view[0] + view[1]) / 2) =>
  show(...view.map((end) => around + (end - around) * factor));

function timeAt(panel, { clientX }) {
  const x = clientX - panel.figure.getBoundingClientRect().left - panel.left;
  return view[0] + (x / plotWidth(panel)) * (view[1] - view[0]);
}

const pageScrolls = () => document.documentElement.scrollHeight > window.innerHeight + 1;

// Scrolling moves the page where it is longer than the window, and else zooms.
function onWheel(event, panel) {
  const sideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
  const zooms = event.ctrlKey || event.metaKey;
  if (!sideways && !zooms && pageScrolls()) return;
  event.preventDefault();
  const turned = (sideways && event.deltaX) || event.deltaY;
  const limited = Math.max(-300, Math.min(300, turned));
  if (sideways) move(limited / 1000);
  else zoom(Math.exp(limited / 250), timeAt(panel, event));
}

// The mouse draws a window to zoom into; one finger moves, two zoom.
function listenToPointers(panel) {
  const { figure } = panel, down = new Map();
  let range = null;
  const finish = (event) => {
    const pressed = down.get(event.pointerId);
    down.delete(event.pointerId);
    range?.remove();
    range = null;
    return pressed;
  };
  figure.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    unpoint();
    figure.setPointerCapture(event.pointerId);
    down.set(event.pointerId, { from: event.clientX, x: event.clientX, time: timeAt(panel, event) });
  });
  figure.addEventListener("pointermove", (event) => {
    const held = down.get(event.pointerId);
    if (!held) {
      if (drawing) unpoint(); else point(panel, event);
      return;
    }
    if (event.pointerType === "mouse") range = stretchRange(panel, range, held.from, event.clientX);
    else drag(panel, down, held, event.clientX);
    held.x = event.clientX;
  });
  figure.addEventListener("pointerup", (event) => {
    const held = finish(event);
    if (!held) return;
    if (Math.abs(event.clientX - held.from) < STILL) openWait(panel, event);
    else if (event.pointerType === "mouse")
      show(...[held.time, timeAt(panel, event)].sort((one, other) => one - other));
  });
  figure.addEventListener("pointercancel", finish);
  figure.addEventListener("pointerleave", unpoint);
  figure.addEventListener("dblclick", showStep);
  figure.addEventListener("wheel", (event) => onWheel(event, panel), { passive: false });
}

function stretchRange(panel, range, from, to) {
  const shown = range ?? element("div", { className: "range" });
  const left = panel.figure.getBoundingClientRect().left;
  shown.style.left = `${Math.min(from, to) - left}px`;
  shown.style.width = `${Math.abs(to - from)}px`;
  if (!range) panel.figure.append(shown);
  return shown;
}

function drag(panel, down, held, x) {
  if (down.size === 1) return void move((held.x - x) / plotWidth(panel));
  const [other] = [...down.values()].filter((finger) => finger !== held);
  const before = Math.max(Math.abs(held.x - other.x), 1), after = Math.max(Math.abs(x - other.x), 1);
  zoom(before / after, timeAt(panel, { clientX: (x + other.x) / 2 }));
}
