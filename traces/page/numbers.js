// The numbers of each timeline, from the start and above all pictures: one beside the other.

function rowsOf(entries) {
  const labels = [...new Set(entries.flatMap((pairs) => pairs.map(([label]) => label)))];
  const columns = entries.map((pairs) => new Map(pairs));
  return labels.map((label) => element("tr", {},
    element("th", { scope: "row" }, capital(label)),
    ...columns.map((column) => element("td", {}, column.get(label) ?? ""))));
}

// Seconds that the mean rank computes and idles, as shares of the step.
const sharesOf = ({ causes, length }) => causes.filter(([, seconds]) => seconds > 1e-9 * length)
  .map(([cause, seconds]) => [cause, `${((100 * seconds) / length).toFixed(1)}%`]);

function headingOf(words, columns) {
  return element("tr", { className: "heading" },
    element("th", { colSpan: columns + 1, scope: "rowgroup" }, words));
}

// A table with a column for each panel; of one panel alone, its numbers beside each other.
function writeNumbers() {
  const known = panels.filter(({ summary, causes }) => summary.length || causes.length);
  if (!known.length) return find(".numbers").replaceChildren();
  const heads = known.map(({ title }) => element("th", { scope: "col" }, title));
  const numbers = rowsOf(known.map(({ summary }) => summary));
  const causes = rowsOf(known.map(sharesOf));
  if (causes.length) causes.unshift(headingOf("Where the mean rank's step goes", known.length));
  const tables = [numbers, causes].filter((rows) => rows.length).map((rows) =>
    element("table", {}, element("thead", {}, element("tr", {}, element("td"), ...heads.splice(0))),
      element("tbody", {}, ...rows)));
  find(".numbers").replaceChildren(...tables);
}
