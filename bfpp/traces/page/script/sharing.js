// Sharing a view: its picture as a file (SVG, or PNG at twice the resolution), and a link to it.

const HEADING = 26; // pixels of a panel's title in a picture

// Draws all panels below each other; `shift` moves the pen down to where one begins.
function drawPanels(pen, look, shift) {
  for (const panel of panels) {
    pen.text(panel.title, 8, HEADING / 2, 13, "left", look.ink, true);
    shift(HEADING);
    drawPanel(panel, pen, view, plotWidth(panel), look);
    shift(heightOf(panel));
  }
}

const pictureSize = () => [
  panels[0].left + plotWidth(panels[0]) + RIGHT,
  panels.reduce((sum, panel) => sum + HEADING + heightOf(panel), 0),
];

function pictureAsSvg() {
  const look = lookOf(), [width, height] = pictureSize(), pen = svgPen();
  pen.rect(0, 0, width, height, look.paper);
  let top = 0;
  const open = () => pen.parts.push(`<g transform="translate(0 ${top})">`);
  open();
  drawPanels(pen, look, (by) => { top += by; pen.parts.push("</g>"); open(); });
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" `
    + `height="${height}" font-family="${FONT.replaceAll('"', "")}">${pen.parts.join("")}</g></svg>\n`;
}

function pictureAsPng() {
  const look = lookOf(), [width, height] = pictureSize(), canvas = element("canvas");
  const pen = canvasPen(canvas, width, height, 2);
  pen.rect(0, 0, width, height, look.paper);
  drawPanels(pen, look, (by) => pen.down(by));
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

const fileName = (ending) => `${document.title.toLowerCase().replace(/[^a-z0-9]+/g, "-")}.${ending}`;

function download(blob, name) {
  const address = URL.createObjectURL(blob);
  element("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

const saveSvg = () =>
  download(new Blob([pictureAsSvg()], { type: "image/svg+xml" }), fileName("svg"));
const savePng = async () => download(await pictureAsPng(), fileName("png"));

const SWITCHES = ["critical", "channels", "memory"];
let opening = {}; // the fragment's values as the page opens

const inFragment = () => Object.fromEntries(new URLSearchParams(location.hash.slice(1)));

// The current view's settings, by name.
function viewNow() {
  const now = {};
  if (!isWhole()) [now.from, now.to] = view.map((end) => `${Number(end.toPrecision(12))}`);
  for (const name of SWITCHES) now[name] = `${Number(find(`.${name} input`).checked)}`;
  if (find(".find input").value) now.find = find(".find input").value;
  return { ...now, ...choicesNow() };
}

function writeLink() {
  const now = Object.entries(viewNow()).filter(([name, value]) => value !== opening[name]);
  const fragment = new URLSearchParams(now).toString();
  if (fragment === location.hash.slice(1)) return;
  history.replaceState(null, "", fragment ? `#${fragment}` : `${location.pathname}${location.search}`);
}

let timer = null;
function linkLater() {
  clearTimeout(timer);
  timer = setTimeout(writeLink, 250); // browsers refuse too many in a second
}

// Shows the view of the address.
async function followLink() {
  const said = { ...opening, ...inFragment() };
  await followChoices(said);
  for (const name of SWITCHES)
    if (name in said) find(`.${name} input`).checked = said[name] === "1";
  if (said.find !== undefined) find(".find input").value = said.find;
  place();
  const [from, to] = [said.from, said.to].map(Number);
  await (to > from ? show(from, to) : showStep());
}
