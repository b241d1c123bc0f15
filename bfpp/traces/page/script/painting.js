// From a row's tasks to pixels, and the pens that draw: on a canvas, or as SVG.
//
// - A task wide enough for a seam fills the pixels whose middle it covers. Narrower ones are mixed,
//   by their time in a pixel, where they fill half of it. The pixel that the middle of a task
//   narrower than a pixel is in shows it, too, and it alone where the mixture would hide it.
// - A row costs as much as it has pixels, not tasks: groups of tasks are opened only where they are
//   wider than a pixel.
// - All drawing goes through a pen, so that a saved picture is the same as the screen.

const IDLE = 0, SEAM = 1; // in place of paints: nothing runs, and the end of a wide task
const SEAM_FROM = 5; // pixels of a task from which on it has one
const WHITE = 0xffffffff, INNER_SEAM = 0.35; // share of white in the seam between units of a pass
const TOUCHING = 0.5; // pixels between the tasks of one pass, at most
const FAINT = 1 / 8; // share of a pixel below which a mixture would hide a task
const FRAME = 1.5; // width of a frame's line in pixels, inside its box

const paintOf = (colour) =>
  0xff000000 | parseInt(colour.slice(5, 7) + colour.slice(3, 5) + colour.slice(1, 3), 16);

const colourOf = (paint) =>
  `#${[0, 8, 16].map((bits) => ((paint >> bits) & 0xff).toString(16).padStart(2, "0")).join("")}`;

// One paint with a share of another, each channel rounded.
function mixed(one, other, share) {
  if (one === other || !(share > 0)) return one;
  let paint = 0xff000000;
  for (let bits = 0; bits < 24; bits += 8) {
    const from = (one >> bits) & 0xff, to = (other >> bits) & 0xff;
    paint |= Math.round(from + (to - from) * share) << bits;
  }
  return paint >>> 0;
}

// The mixture in some pixels: their paints so far, and the seconds in each.
const mixtures = (pixels) =>
  ({ paints: new Uint32Array(pixels).fill(IDLE), seconds: new Float64Array(pixels) });

function mix({ paints, seconds }, at, paint, more) {
  seconds[at] += more;
  paints[at] = paints[at] === IDLE ? paint : mixed(paints[at], paint, more / seconds[at]);
}

// Whether a task goes on with the pass before it: of one micro-batch, through the next unit.
const carriesOn = (panel, before, [task, left]) => Boolean(before) && left - before[2] < TOUCHING
  && panel.lanes[panel.lane[task]].size === "compute"
  && panel.operation[task] === panel.operation[before[0]]
  && panel.microbatch[task] === panel.microbatch[before[0]];

// The paints of a row of pixels, and its wide tasks as [task, left, right] in pixels.
function paintRow(panel, { tasks, levels }, from, pixel, pixels) {
  const line = new Uint32Array(pixels).fill(IDLE), wide = [];
  const all = mixtures(pixels), marks = mixtures(pixels);
  const seam = Math.max(1, Math.round(devicePixelRatio));
  const share = (paint, seconds, left, right) => {
    const first = Math.max(0, Math.floor(left));
    const last = Math.min(pixels - 1, Math.max(first, Math.ceil(right) - 1));
    if (first === last) return mix(all, first, paint, seconds);
    for (let at = first; at <= last; at++) {
      const inside = Math.min(right, at + 1) - Math.max(left, at);
      mix(all, at, paint, (seconds * inside) / (right - left));
    }
  };
  const fill = (task, paint, left, right) => {
    wide.push([task, Math.max(left, 0), Math.min(right, pixels)]);
    if (right - left < SEAM_FROM) return share(paint, (right - left) * pixel, left, right);
    const begin = Math.max(0, Math.round(left)), end = Math.min(pixels, Math.round(right));
    line.fill(paint, begin, end);
    if (begin > seam && line[begin - 1] === SEAM && carriesOn(panel, wide.at(-2), wide.at(-1)))
      line.fill(mixed(paint, WHITE, INNER_SEAM), begin - seam, begin);
    if (right <= pixels) line.fill(SEAM, end - seam, end);
  };
  const mark = (paint, seconds, left, right) => {
    const at = Math.min(pixels - 1, Math.max(0, Math.floor((left + right) / 2)));
    if (seconds < pixel * FAINT) mix(marks, at, paint, seconds);
    else marks.seconds[at] += seconds; // then it is the mixture that is drawn
    share(paint, seconds, left, right);
  };
  const visit = (level, at) => {
    const { starts, ends, paints, seconds } = levels[level];
    const left = (starts[at] - from) / pixel, right = (ends[at] - from) / pixel;
    if (right <= 0 || left >= pixels) return;
    if (right - left <= 1) mark(paints[at], seconds[at], left, right);
    else if (!level) fill(tasks[at], paints[at], left, right);
    else {
      visit(level - 1, 2 * at);
      if (2 * at + 1 < levels[level - 1].starts.length) visit(level - 1, 2 * at + 1);
    }
  };
  if (tasks.length) visit(levels.length - 1, 0);
  for (let at = 0; at < pixels; at++) {
    const marked = marks.seconds[at];
    if (marked > 0 && marked < pixel * FAINT) line[at] = marks.paints[at];
    else if (marked > 0 || all.seconds[at] >= pixel / 2) line[at] = all.paints[at];
  }
  return { line, wide };
}

// The end of the pixels that are alike from one on.
function runEnd(line, from) {
  let end = from + 1;
  while (end < line.length && line[end] === line[from]) end++;
  return end;
}

const fontOf = (size, bold) => `${bold ? "600 " : ""}${size}px ${FONT}`;

// Draws on a canvas with `scale` pixels for each of the page's.
function canvasPen(canvas, width, height, scale) {
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const brush = canvas.getContext("2d");
  brush.scale(scale, scale);
  brush.textBaseline = "middle";
  let font = "", fill = "", below = 0;
  const dip = (colour) => { if (fill !== colour) brush.fillStyle = fill = colour; };
  return {
    scale,
    down(by) {
      below += by;
      brush.translate(0, by);
    },
    rect(left, top, width, height, colour) {
      dip(colour);
      brush.fillRect(left, top, width, height);
    },
    text(words, x, y, size, align, colour, bold) {
      if (font !== fontOf(size, bold)) brush.font = font = fontOf(size, bold);
      if (brush.textAlign !== align) brush.textAlign = align;
      dip(colour);
      brush.fillText(words, x, y);
    },
    area(points, colour) {
      dip(colour);
      brush.beginPath();
      for (const [x, y] of points) brush.lineTo(x, y);
      brush.fill();
    },
    frame(left, top, width, height, colour) {
      brush.strokeStyle = colour;
      brush.lineWidth = FRAME;
      brush.strokeRect(left + FRAME / 2, top + FRAME / 2, width - FRAME, height - FRAME);
    },
    row(left, top, height, line, look) {
      const first = Math.round((below + top) * scale);
      const rows = Math.round((below + top + height) * scale) - first;
      const paints = new Uint32Array(line.length * rows);
      const idle = paintOf(look.idle), seam = paintOf(look.paper);
      for (let at = 0; at < line.length; at++)
        paints[at] = line[at] === IDLE ? idle : line[at] === SEAM ? seam : line[at];
      for (let done = 1; done < rows; done *= 2)
        paints.copyWithin(done * line.length, 0, Math.min(done, rows - done) * line.length);
      const image = new ImageData(new Uint8ClampedArray(paints.buffer), line.length, rows);
      brush.putImageData(image, Math.round(left * scale), first);
    },
  };
}

// Writes the same as the elements of an SVG.
function svgPen() {
  const parts = [], round = (number) => `${Number(number.toFixed(2))}`;
  const escaped = (words) => words.replace(/[&<>"]/g, (sign) => `&#${sign.charCodeAt(0)};`);
  const rect = (left, top, width, height, colour) => parts.push(`<rect x="${round(left)}" `
    + `y="${round(top)}" width="${round(width)}" height="${round(height)}" fill="${colour}"/>`);
  const anchors = { left: "start", center: "middle", right: "end" };
  return {
    scale: 4, parts, rect,
    text(words, x, y, size, align, colour, bold) {
      parts.push(`<text x="${round(x)}" y="${round(y)}" dy=".35em" font-size="${round(size)}" `
        + `text-anchor="${anchors[align]}" fill="${colour}"${bold ? ' font-weight="600"' : ""}>`
        + `${escaped(words)}</text>`);
    },
    area(points, colour) {
      const corners = points.map(([x, y]) => `${round(x)},${round(y)}`).join(" ");
      parts.push(`<polygon points="${corners}" fill="${colour}"/>`);
    },
    frame(left, top, width, height, colour) {
      parts.push(`<rect x="${round(left + FRAME / 2)}" y="${round(top + FRAME / 2)}" `
        + `width="${round(width - FRAME)}" height="${round(height - FRAME)}" fill="none" `
        + `stroke="${colour}" stroke-width="${FRAME}"/>`);
    },
    row(left, top, height, line, look) {
      rect(left, top, line.length / this.scale, height, look.idle);
      for (let at = 0, end = 0; at < line.length; at = end) {
        end = runEnd(line, at);
        if (line[at] === IDLE) continue;
        const colour = line[at] === SEAM ? look.paper : colourOf(line[at]);
        rect(left + at / this.scale, top, (end - at) / this.scale, height, colour);
      }
    },
  };
}
