// The lower part of the page: endpoints, differences, other examples, and noise, as chosen by the reader.

function drawEndpoints() {
  const { text, which, sort, expanded } = choice.endpoints;
  const all = view.summary.endpoints.map((endpoint) => ({ ...endpoint, selected: endpoint.name === choice.endpoint }));
  const rows = all.filter(
    (endpoint) =>
      contains(endpoint.name, text) &&
      (which === "all" || (which === "regressed" ? endpoint.regressed : differing(endpoint) > 0) || endpoint.selected),
  );
  put("endpoints-found", found(rows.length, all.length));
  if (!rows.length)
    return put("endpoints-table", nothing(all.length ? "No endpoint fits the filter." : "There are no endpoints."));
  const redraw = (change) => {
    Object.assign(choice.endpoints, change);
    keepingFocus("endpoints-table", drawEndpoints);
  };
  const table = dataTable({
    caption: "Endpoints",
    columns: endpointColumns(selectEndpoint),
    rows,
    sort,
    expanded: expanded || all.some((endpoint) => endpoint.selected),
    onSort: (name) => redraw({ sort: { name, down: sort.name === name ? !sort.down : name !== "Endpoint" } }),
    onExpand: () => redraw({ expanded: true }),
    detail: endpointDetail,
  });
  return put("endpoints-table", ...table);
}

function endpointDetail(endpoint) {
  const differences = withTotals(view.summary.differences.filter((d) => d.endpoint === endpoint.name));
  const test =
    endpoint.p_value === null
      ? "Too few exchanges to test for a regression."
      : `Test for a regression: p ${probability(endpoint.p_value)}.`;
  return el(
    "div",
    { class: "endpoint-detail" },
    el("div", {}, latency(endpoint), el("p", { class: "soft small" }, test)),
    el(
      "div",
      {},
      verdictLegend(endpoint.verdicts, endpoint.count),
      differences.length
        ? dataTable({
            caption: `Differences of ${endpoint.name}`,
            columns: differenceColumns(openFrom(differences), false),
            rows: differences,
            expanded: true,
          })
        : nothing("The answers differ nowhere."),
    ),
  );
}

function probability(p) {
  return p < 0.001 ? "< 0.001" : `= ${p.toFixed(3)}`;
}

function selectEndpoint(name) {
  if (choice.endpoint === name) history.replaceState(null, "", "#endpoints");
  else history.replaceState(null, "", `#endpoint=${encodeURIComponent(name)}`);
  choice.endpoint = choice.endpoint === name ? null : name;
  keepingFocus("endpoints-table", drawEndpoints);
}

function filteredDifferences() {
  const { text, kind, endpoint } = choice.differences;
  return withTotals(view.summary.differences).filter(
    (d) =>
      (!kind || d.kind === kind) &&
      (!endpoint || d.endpoint === endpoint) &&
      [d.path, d.source ?? "", d.target ?? "", d.path || d.kind].some((value) => contains(value, text)),
  );
}

function withTotals(differences) {
  const totals = new Map(view.summary.endpoints.map((endpoint) => [endpoint.name, endpoint.count]));
  return differences.map((difference) => ({ ...difference, of: totals.get(difference.endpoint) }));
}

function drawDifferences() {
  const all = view.summary.differences;
  const rows = filteredDifferences();
  drawEndpointFilter(all);
  put("differences-found", found(rows.length, all.length));
  if (!rows.length)
    return put(
      "differences-table",
      nothing(all.length ? "No difference fits the filter." : "No differences were found."),
    );
  const table = dataTable({
    caption: "Differences",
    columns: differenceColumns(openFrom(rows), true),
    rows,
    expanded: choice.differences.expanded,
    onExpand: () => {
      choice.differences.expanded = true;
      keepingFocus("differences-table", drawDifferences);
    },
  });
  return put("differences-table", ...table);
}

function drawEndpointFilter(differences) {
  const names = [...new Set(differences.map((d) => d.endpoint))].sort();
  const options = names.map((name) => el("option", { value: name }, name));
  put("differences-endpoint", el("option", { value: "" }, "Any endpoint"), ...options);
  if (!names.includes(choice.differences.endpoint)) choice.differences.endpoint = "";
  byId("differences-endpoint").value = choice.differences.endpoint;
}

// Examples that no place stands for, such as requests without an answer.
function drawOthers() {
  const used = new Set(view.summary.differences.map((d) => d.example));
  const others = Object.values(view.summary.examples).filter((example) => !used.has(example.id));
  if (!others.length) return put("others");
  const table = dataTable({
    caption: "Other examples",
    columns: otherColumns(),
    rows: others,
    expanded: choice.othersExpanded,
    onExpand: () => {
      choice.othersExpanded = true;
      drawOthers();
    },
  });
  return put("others", el("h3", {}, "Other examples"), ...table);
}

function drawNoise() {
  const { noise } = view.summary;
  put("noise-found", noise.length ? plural(noise.length, "place", "places") : "none");
  if (!noise.length) return put("noise-table", nothing("Nothing was left out."));
  const table = dataTable({
    caption: "Noise left out",
    columns: noiseColumns(),
    rows: noise,
    expanded: choice.noiseExpanded,
    onExpand: () => {
      choice.noiseExpanded = true;
      drawNoise();
    },
  });
  return put("noise-table", ...table);
}

function contains(text, part) {
  return text.toLowerCase().includes(part.trim().toLowerCase());
}

function found(shown, all) {
  return shown === all ? count(all) : `${count(shown)} of ${count(all)}`;
}

function nothing(words) {
  return el("p", { class: "nothing soft" }, words);
}

// A table drawn anew has the focus on the button at the same place.
function keepingFocus(id, redraw) {
  const buttons = () => [...byId(id).querySelectorAll("button, a")];
  const words = document.activeElement?.textContent.replace(/ [↓↑]$/, "");
  redraw();
  buttons()
    .find((button) => button.textContent.replace(/ [↓↑]$/, "") === words)
    ?.focus({ preventScroll: true });
}
