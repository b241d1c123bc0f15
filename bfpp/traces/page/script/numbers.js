// The numbers of each timeline, side by side, folded below all pictures.

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

const groupOf = (rows) => element("tbody", {}, ...rows);

const captionOf = (words, columns) => element("tr", { className: "heading" },
  element("th", { colSpan: columns + 1, scope: "rowgroup" }, words));

// One table with a column for each panel; of one panel, which has its title elsewhere, two tables.
function writeNumbers() {
  const known = panels.filter(({ summary, causes }) => summary.length || causes.length);
  const heads = known.map(({ title }) => element("th", { scope: "col" }, title));
  const numbers = rowsOf(known.map(({ summary }) => summary));
  const causes = rowsOf(known.map(sharesOf));
  if (causes.length) causes.unshift(captionOf("Where the mean rank's step goes", known.length));
  const groups = [numbers, causes].filter((rows) => rows.length).map(groupOf);
  const head = element("thead", {}, element("tr", {}, element("td"), ...heads));
  const tables = known.length > 1 ? [[head, ...groups]]
    : groups.map((group) => [group]);
  find(".tables").hidden = !groups.length;
  find(".numbers").replaceChildren(...tables.map((parts) => element("table", {}, ...parts)));
}
