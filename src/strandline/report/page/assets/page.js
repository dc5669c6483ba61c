// The page: what is chosen, and everything drawn anew from the view and the choice.

const choice = {
  endpoint: null,
  endpoints: { text: "", which: "all", sort: { name: "Not the same", down: true }, expanded: false },
  differences: { text: "", kind: "", endpoint: "", expanded: false },
  othersExpanded: false,
  noiseExpanded: false,
};
let view = null;

// Also how a page is brought up to date: `strandline.draw(view)` keeps what the reader has chosen.
function draw(newView) {
  view = newView;
  drawVerdict();
  drawGates();
  drawFidelity();
  drawTimeline();
  drawLatency();
  drawEndpoints();
  drawDifferences();
  drawOthers();
  drawNoise();
  put(
    "cut",
    ...view.cut.map((sentence) => el("p", {}, sentence)),
    el("p", {}, `Made by Strandline, ${moment(view.summary.made_us)}.`),
  );
  byId("report").hidden = false;
}

let walk = [];

// The example opens from a list; the arrows then go through that list.
function openFrom(differences) {
  return () => {
    walk = [...new Set(differences.map((d) => d.example))];
  };
}

function hasExample(id) {
  return Object.hasOwn(view.summary.examples, id);
}

function showExample(id) {
  const dialog = byId("example");
  const example = hasExample(id) ? view.summary.examples[id] : null;
  if (!example) return closeExample();
  const differences = view.summary.differences.filter((d) => d.example === id);
  const names = new Set(differences.map((d) => d.endpoint));
  const noise = view.summary.noise.filter((n) => names.has(n.endpoint));
  if (!walk.includes(id)) walk = Object.keys(view.summary.examples);
  const step = (by) => {
    const other = walk[walk.indexOf(id) + by];
    return other === undefined ? null : () => location.replace(exampleLink(other));
  };
  const focused = document.activeElement?.getAttribute("aria-label") ?? "";
  dialog.replaceChildren(
    ...exampleContent(example, differences, noise, { onClose: closeExample, previous: step(-1), next: step(1) }),
  );
  if (!dialog.open) dialog.showModal();
  // Whoever walks on with a key finds the same button under it.
  const button = [...dialog.querySelectorAll("button:enabled")].find((each) => each.ariaLabel === focused);
  (button ?? byId("example-title")).focus();
  dialog.querySelector(".hit")?.scrollIntoView({ block: "center" });
  return undefined;
}

function closeExample() {
  const dialog = byId("example");
  if (dialog.open) dialog.close();
}

function afterClose() {
  byId("example").replaceChildren();
  if (location.hash.startsWith("#example=")) {
    const back = choice.endpoint === null ? "#differences" : `#endpoint=${encodeURIComponent(choice.endpoint)}`;
    history.replaceState(null, "", back);
  }
}

// What the address names after its # is shown: an endpoint or an example.
function followAddress() {
  const [, what, name] = /^#(endpoint|example)=(.*)$/.exec(location.hash) ?? [];
  if (what !== "example") closeExample();
  if (what === "example") showExample(decoded(name));
  if (what === "endpoint" && view.summary.endpoints.some((endpoint) => endpoint.name === decoded(name))) {
    choice.endpoint = decoded(name);
    drawEndpoints();
    byId("endpoints-table").querySelector(".selected")?.scrollIntoView({ block: "start" });
  }
}

function decoded(name) {
  try {
    return decodeURIComponent(name);
  } catch {
    return name;
  }
}

function listen() {
  const filters = [
    ["endpoints-text", "endpoints", "text", drawEndpoints],
    ["endpoints-which", "endpoints", "which", drawEndpoints],
    ["differences-text", "differences", "text", drawDifferences],
    ["differences-kind", "differences", "kind", drawDifferences],
    ["differences-endpoint", "differences", "endpoint", drawDifferences],
  ];
  for (const [id, part, name, redraw] of filters) {
    byId(id).addEventListener(id.endsWith("-text") ? "input" : "change", (event) => {
      choice[part][name] = event.target.value;
      redraw();
    });
  }
  byId("example").addEventListener("close", afterClose);
  addEventListener("hashchange", followAddress);
}

draw(JSON.parse(byId("view").textContent));
listen();
followAddress();
window.strandline = { draw };
