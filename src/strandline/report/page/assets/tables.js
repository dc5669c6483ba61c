// Tables of endpoints, differences and noise.

const ROWS = 20;
const VERDICTS = ["same", "slower", "body differs", "headers differ", "status differs", "failed", "no source"];

function verdictBar(verdicts, total) {
  const known = VERDICTS.filter((verdict) => verdicts[verdict]);
  const words = known.map((verdict) => `${verdict} ${percent(verdicts[verdict], total)}`).join(", ");
  const bar = el("div", { class: "verdicts", role: "img", "aria-label": words, title: words });
  for (const verdict of known) {
    const part = el("i", { class: verdictClass(verdict) });
    part.style.flexGrow = verdicts[verdict];
    bar.append(part);
  }
  return bar;
}

function verdictClass(verdict) {
  return `v-${verdict.replace(" ", "-")}`;
}

function verdictLegend(verdicts, total) {
  const entries = VERDICTS.filter((verdict) => verdicts[verdict]).map((verdict) =>
    el(
      "li",
      {},
      el("i", { class: `key ${verdictClass(verdict)}` }),
      verdict,
      " ",
      el("b", {}, count(verdicts[verdict])),
      ` ${percent(verdicts[verdict], total)}`,
    ),
  );
  return el("ul", { class: "legend verdict-legend" }, entries);
}

// Columns are {name, cell, class, by}; those with `by` can be sorted by. `detail` may give a row's second line.
function dataTable({ caption, columns, rows, sort, onSort, expanded, onExpand, detail }) {
  const chosen = columns.find((column) => column.name === sort?.name);
  const sorted = chosen ? sortedRows(rows, chosen.by, sort.down) : rows;
  const shown = expanded ? sorted : sorted.slice(0, ROWS);
  const body = shown.flatMap((row) => [
    el(
      "tr",
      { class: row.selected ? "selected" : null },
      columns.map((column) => cellOf(column, row)),
    ),
    row.selected && detail ? el("tr", { class: "detail" }, el("td", { colspan: columns.length }, detail(row))) : null,
  ]);
  const table = el(
    "table",
    { class: "data" },
    el("caption", { class: "unseen" }, caption),
    el(
      "thead",
      {},
      el(
        "tr",
        {},
        columns.map((column) => headerOf(column, sort, onSort)),
      ),
    ),
    el("tbody", {}, body),
  );
  const more =
    rows.length > ROWS && !expanded
      ? el("button", { class: "more", click: onExpand }, `Show all ${count(rows.length)}`)
      : null;
  return [table, more].filter(Boolean);
}

function cellOf(column, row) {
  return el("td", { class: column.class, "data-label": column.name }, column.cell(row));
}

function headerOf(column, sort, onSort) {
  const plain = { scope: "col", class: column.class };
  if (!column.by) return el("th", plain, column.name);
  const active = sort.name === column.name;
  const direction = active ? (sort.down ? "descending" : "ascending") : null;
  const button = el(
    "button",
    { class: "sort", click: () => onSort(column.name) },
    column.name,
    el("span", { "aria-hidden": "true" }, active ? (sort.down ? " ↓" : " ↑") : ""),
  );
  return el("th", { ...plain, "aria-sort": direction }, button);
}

// Rows without a value come last either way.
function sortedRows(rows, by, down) {
  const sign = down ? -1 : 1;
  return [...rows].sort((a, b) => {
    const [x, y] = [by(a), by(b)];
    if (x === null || y === null) return (x === null) - (y === null);
    return (x < y ? -1 : x > y ? 1 : 0) * sign;
  });
}

function differing(endpoint) {
  return endpoint.count - (endpoint.verdicts.same ?? 0);
}

function endpointColumns(onSelect) {
  const name = (endpoint) =>
    el(
      "button",
      { class: "name", "aria-expanded": String(Boolean(endpoint.selected)), click: () => onSelect(endpoint.name) },
      endpoint.name,
    );
  return [
    { name: "Endpoint", class: "main", by: (e) => e.name, cell: name },
    { name: "Exchanges", class: "num", by: (e) => e.count, cell: (e) => count(e.count) },
    { name: "Not the same", class: "num wider", by: differing, cell: differingCell },
    { name: "Verdicts", class: "bars", cell: (e) => verdictBar(e.verdicts, e.count) },
    {
      name: "Source p50",
      class: "num",
      by: (e) => atShare(e.source, 0.5),
      cell: (e) => duration(atShare(e.source, 0.5)),
    },
    {
      name: "Target p50",
      class: "num",
      by: (e) => atShare(e.target, 0.5),
      cell: (e) => duration(atShare(e.target, 0.5)),
    },
    { name: "Factor", class: "num factor", by: (e) => e.slower, cell: factorCell },
  ];
}

function differingCell(endpoint) {
  const number = differing(endpoint);
  if (!number) return el("span", { class: "soft" }, "0");
  return [count(number), " ", el("span", { class: "soft share" }, percent(number, endpoint.count))];
}

function factorCell(endpoint) {
  const mark = endpoint.regressed ? el("span", { class: "mark bad" }, "regressed") : null;
  return [mark, el("span", {}, factor(endpoint.slower))];
}

function differenceColumns(onOpen, withEndpoint) {
  const place = (difference) => [
    hasExample(difference.example)
      ? el("a", { class: "name", href: exampleLink(difference.example), click: onOpen }, difference.path || "status")
      : el("span", { class: "mono" }, difference.path || "status"),
    withEndpoint ? el("div", { class: "soft mono small" }, difference.endpoint) : null,
  ];
  return [
    {
      name: "Exchanges",
      class: "num",
      cell: (d) => [count(d.count), d.of ? el("div", { class: "soft small" }, percent(d.count, d.of)) : null],
    },
    { name: "In", class: "kind", cell: (d) => el("span", { class: `mark ${d.kind}` }, d.kind) },
    { name: "Where", class: "main", cell: place },
    { name: "Source", class: "value", cell: (d) => valueCell(d.source) },
    { name: "Target", class: "value", cell: (d) => valueCell(d.target) },
  ];
}

function valueCell(value) {
  return value === null ? el("span", { class: "soft" }, "missing") : el("code", {}, value === "" ? "(empty)" : value);
}

function otherColumns() {
  const request = (example) =>
    el("a", { class: "name", href: exampleLink(example.id) }, example.request.split("\n", 1)[0]);
  return [
    {
      name: "Verdict",
      class: "kind",
      cell: (e) => el("span", { class: `mark ${verdictClass(e.verdict)}` }, e.verdict),
    },
    { name: "Request", class: "main", cell: request },
    { name: "Error", class: "reason", cell: (e) => el("span", { class: "soft" }, e.error ?? "") },
  ];
}

function noiseColumns() {
  return [
    { name: "Exchanges", class: "num", cell: (n) => count(n.count) },
    { name: "In", class: "kind", cell: (n) => el("span", { class: `mark ${n.kind}` }, n.kind) },
    {
      name: "Where",
      class: "main",
      cell: (n) => [
        el("span", { class: "mono" }, n.path || "status"),
        el("div", { class: "soft mono small" }, n.endpoint),
      ],
    },
    { name: "Reason", class: "reason", cell: (n) => n.reason },
  ];
}

function exampleLink(id) {
  return `#example=${encodeURIComponent(id)}`;
}
