// Links to views: the differences from the page's initial view, in the address's fragment.

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
