// The picture of the page's timelines as a file: SVG, or PNG at twice the resolution.

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
