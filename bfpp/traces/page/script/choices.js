// The explorer's form of choices, and the timelines that follow from them.
//
// While a request is open, only the latest of the choices made meanwhile is requested. Where there
// is no server to ask (`choices.address` is null), listed steps are replayed in the page.

let choices = null; // what can be chosen, or null on a page that is no explorer
let answer = {}; // the last one: experiment files, and the command line
let asked = "", asking = null;

const fieldsOf = () => [...find(".choices").elements].filter(({ name }) => name);
const valueOf = (field) => (field.type === "checkbox" ? `${field.checked}` : field.value.trim());

// The choices that differ from the defaults, by name.
function choicesNow() {
  if (!choices) return {};
  const values = fieldsOf().map((field) => [field.name, valueOf(field)]);
  return Object.fromEntries(values.filter(([name, value]) => value !== choices.defaults[name]));
}

function followChoices(said) {
  if (!choices) return null;
  fillIn(said);
  return ask();
}

// The tabs of the form, for the kinds of costs; what is chosen is a field like others.
function tabsOf(titles) {
  const field = element("input", { type: "hidden", name: "costs", id: "choice-costs" });
  const tabs = Object.entries(titles).map(([costs, title]) => element("button", {
    type: "button", value: costs, onclick: () => {
      field.value = costs;
      field.dispatchEvent(new Event("input", { bubbles: true }));
    } }, title));
  return element("div", { className: "tabs" }, field, ...tabs);
}

// Shows the fields of the chosen tab: of a model, or of abstract costs.
function showWhatCounts() {
  const costs = find("#choice-costs").value;
  for (const tab of find(".tabs").querySelectorAll("button"))
    tab.setAttribute("aria-pressed", `${tab.value === costs}`);
  for (const { name, costs: only } of choices.groups.flatMap(({ fields }) => fields))
    find(`#choice-${name}`).closest(".control").hidden = Boolean(only) && only !== costs;
  for (const group of find(".choices").querySelectorAll("details"))
    group.hidden = [...group.querySelectorAll(".control")].every(({ hidden }) => hidden);
}

function fillIn(said) {
  for (const field of fieldsOf()) {
    const value = said[field.name] ?? choices.defaults[field.name];
    if (field.type === "checkbox") field.checked = value === "true";
    else field.value = value;
    if (field.matches("select") && field.value !== value) { // from a link: it is told to be wrong
      field.append(element("option", { value, textContent: value }));
      field.value = value;
    }
    field.dispatchEvent(new Event("followed"));
  }
  showWhatCounts();
}

// A control with its label; a number of known range also has a slider.
function controlOf({ name, title, help, kind, choices, unsaid, least, most, step }) {
  const id = `choice-${name}`, described = `${help}.`;
  const field = choices ? element("select", {}, ...choices.map((each) =>
    element("option", { value: each, textContent: each || unsaid })))
    : kind === "orders" ? element("textarea", { rows: 3, spellcheck: false, placeholder: "0F0,0F1,…" })
      : kind === "flag" ? element("input", { type: "checkbox" })
        : element("input", kind === "text" ? {} : { type: "number", min: least ?? 0, step: step ?? "any" });
  Object.assign(field, { name, id, title: described });
  const parts = [element("label", { htmlFor: id, title: described }, title), field];
  if (most !== undefined && !choices) {
    const slider = element("input", { type: "range", min: least, max: most, step, tabIndex: -1 });
    slider.setAttribute("aria-hidden", "true");
    slider.addEventListener("input", () => { field.value = slider.value; });
    for (const event of ["input", "followed"])
      field.addEventListener(event, () => { slider.value = field.value; });
    parts.push(slider);
  }
  return element("div", { className: `control ${kind}` }, ...parts, element("p", { className: "wrong" }));
}

function setUpChoices(content) {
  choices = content.choices ?? null;
  if (!choices) return;
  const groups = choices.groups.map(({ title, open, fields }) => element("details", { open },
    element("summary", {}, title), element("div", {}, ...fields.map(controlOf))));
  const saved = [
    ["Experiment files", () => answer.experiments.forEach(([name, text]) =>
      download(new Blob([text]), `${name}.toml`))],
    ["Command line", () => { find(".command").hidden = !find(".command").hidden; }],
  ].map(([words, onclick]) => element("button", { type: "button", onclick }, words));
  find(".choices").append(tabsOf(choices.tabs), ...groups,
    ...(choices.note ? [element("p", { className: "note" }, choices.note)] : []), element("p", { className: "saving" }, ...saved,
    element("code", { className: "command", hidden: true, tabIndex: 0 })));
  find(".choices").hidden = false;
  document.body.classList.add("exploring");
  fillIn(choices.defaults);
  find(".choices").addEventListener("input", () => {
    showWhatCounts();
    ask().then(linkLater);
  });
  find(".choices").addEventListener("submit", (event) => event.preventDefault());
}

// Requests the choices; resolves once the page shows the answer.
function ask() {
  asking ??= (async () => {
    await null; // or else, with nothing to ask for, it would end before `asking` is set
    try {
      while (asked !== JSON.stringify(choicesNow())) {
        asked = JSON.stringify(choicesNow());
        await showAnswer(await answerTo(choicesNow()));
      }
    } finally {
      asking = null;
    }
  })();
  return asking;
}

async function answerTo(values) {
  if (!choices.address) return replayedAnswer(values);
  try {
    const response = await fetch(choices.address, { method: "POST", body: JSON.stringify(values) });
    if (!response.ok) return { wrong: { reason: await response.text() } };
    const given = await response.json();
    return given.wrong ? given : { ...given, panels: await Promise.all(given.panels.map(load)) };
  } catch {
    return { wrong: { reason: "bfpp explore has ended: start it again, and open its new address" } };
  }
}

// Shows the timelines of an answer, or its error message alone.
async function showAnswer(given) {
  for (const words of document.querySelectorAll(".wrong")) words.textContent = "";
  find(".choices").classList.toggle("stale", Boolean(given.wrong));
  if (given.wrong) {
    const field = find(`#choice-${given.wrong.field ?? ""}`);
    if (field) field.closest(".control").querySelector(".wrong").textContent = given.wrong.reason;
    find(".lead").textContent = field ? `${given.wrong.field}: ${given.wrong.reason}` : given.wrong.reason;
    return;
  }
  answer = given;
  find(".lead").textContent = given.lead;
  find(".command").textContent = given.command;
  const scroll = window.scrollY, whole = isWhole();
  setPanels(given.panels);
  place();
  await (whole ? showStep() : show(...view));
  window.scrollTo(0, scroll);
}
