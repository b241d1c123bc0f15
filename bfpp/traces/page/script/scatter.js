// Results of a search: throughput against memory, filtered by the options of configurations.

const SVG = "http://www.w3.org/2000/svg";
const PLOT = { width: 860, height: 340, left: 62, right: 14, top: 14, bottom: 42 };
const MOST_KINDS = 24; // values that a filter lists

function drawn(name, attributes, caption = "") {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = caption;
  return made;
}

// A select for each option in which configurations differ.
function filtersOf({ rows, filters }, onchange) {
  return filters.map((name) => [name, [...new Set(rows.map((row) => `${row[name] ?? ""}`))]])
    .filter(([, values]) => values.length > 1 && values.length <= MOST_KINDS)
    .map(([name, values]) => {
      values.sort((one, other) => one.localeCompare(other, "en", { numeric: true }));
      const options = ["", ...values].map((value) =>
        element("option", { value, textContent: value || "all" }));
      const select = element("select", { name, onchange }, ...options);
      return element("label", {}, nameOfChoice(name), select);
    });
}

const nameOfChoice = (name) =>
  name.length === 2 ? name.toUpperCase() : capital(name.replaceAll("_", " "));

function setUpResults({ results }) {
  if (!results) return;
  const plot = find(".plot"), caption = element("output", { className: "counted" });
  const graph = drawn("svg", { role: "group", "aria-label": `${results.y} against ${results.x}` });
  const redrawPlot = () => {
    const selects = [...plot.querySelectorAll("select")];
    const kept = results.rows.filter((row) =>
      selects.every(({ name, value }) => !value || `${row[name] ?? ""}` === value));
    drawScatter(graph, results, kept, caption);
  };
  const filters = filtersOf(results, redrawPlot);
  plot.append(element("form", { className: "filters" }, ...filters), graph, caption);
  plot.hidden = false;
  matchMedia(`(max-width: ${NARROW}px)`).addEventListener("change", redrawPlot);
  redrawPlot();
}

// As wide as the page where that is narrow, so that letters and points keep their size.
function drawScatter(graph, results, rows, caption) {
  const width = Math.min(PLOT.width, graph.parentElement.clientWidth);
  graph.setAttribute("viewBox", `0 0 ${width} ${PLOT.height}`);
  const across = width - PLOT.left - PLOT.right, up = PLOT.height - PLOT.top - PLOT.bottom;
  const most = (name) => Math.max(...results.rows.map((row) => row[name]), 1e-9) * 1.05;
  const mostX = most("x"), mostY = most("y"), bottom = PLOT.top + up;
  const x = (value) => PLOT.left + (value / mostX) * across;
  const y = (value) => bottom - (value / mostY) * up;
  const parts = [];
  for (const value of roundTicks(mostX)) {
    parts.push(drawn("path", { d: `M${x(value)} ${PLOT.top}V${bottom}`, class: "grid" }));
    parts.push(drawn("text", { x: x(value), y: bottom + 16, "text-anchor": "middle" }, `${value}`));
  }
  for (const value of roundTicks(mostY)) {
    parts.push(drawn("path", { d: `M${PLOT.left} ${y(value)}H${PLOT.left + across}`, class: "grid" }));
    parts.push(drawn("text", { x: PLOT.left - 6, y: y(value) + 4, "text-anchor": "end" }, `${value}`));
  }
  parts.push(drawn("text", { x: PLOT.left + across, y: PLOT.height - 6, "text-anchor": "end" }, results.x));
  parts.push(drawn("text", { x: PLOT.left + 6, y: PLOT.top + 10 }, results.y));
  const points = [...rows].sort((one, other) => one.pareto - other.pareto).map((row) => {
    const circle = drawn("circle", { cx: x(row.x), cy: y(row.y), r: row.pareto ? 5.5 : 3.5,
      class: row.pareto ? "pareto" : "", role: "img", "aria-label": row.title,
      ...(row.pareto && { tabindex: 0 }) });
    for (const event of ["pointerenter", "focus"])
      circle.addEventListener(event, () => { caption.textContent = row.title; });
    return circle;
  });
  graph.replaceChildren(...parts, ...points);
  caption.textContent = `${rows.length.toLocaleString("en")} of ${results.rows.length.toLocaleString("en")} `
    + "configurations; filled: on the Pareto front";
}

function roundTicks(most) {
  const least = most / 6, power = 10 ** Math.floor(Math.log10(least));
  const apart = power * [1, 2, 5, 10].find((round) => round * power >= least);
  return Array.from({ length: Math.floor(most / apart) + 1 }, (_, at) =>
    Number((at * apart).toPrecision(12)));
}
