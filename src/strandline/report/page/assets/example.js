// One exchange in full: the request, and the two answers side by side.

const AROUND = 3;
const MOST_ROWS = 3_000;

function exampleContent(example, differences, noise, { onClose, previous, next }) {
  const both = example.source !== null && example.target !== null;
  return [
    exampleBar(example, differences, { onClose, previous, next }),
    el(
      "div",
      { class: "example-scroll", tabindex: 0, role: "region", "aria-label": "Request and answers" },
      exampleFacts(example),
      el("h3", {}, "Request"),
      messageBlock("The request", example.request),
      missingAnswers(example),
      both ? answersSideBySide(example, differences, noise) : onlyAnswer(example),
    ),
  ];
}

function answersSideBySide(example, differences, noise) {
  const found = differences.map((d) => d.path);
  const ignored = noise.map((n) => n.path);
  const ignoredInHead = [...ignored, ...view.summary.ignored_headers];
  const [sourceHead, sourceBody] = headAndBody(example.source);
  const [targetHead, targetBody] = headAndBody(example.target);
  return [
    el("div", { class: "sides", "aria-hidden": "true" }, el("span", {}, "Source"), el("span", {}, "Target")),
    diffTable("Head of the answers", headRows(sourceHead, targetHead), found, ignoredInHead, Infinity),
    diffTable("Body of the answers", bodyRows(sourceBody, targetBody), found, ignored, AROUND),
  ];
}

function onlyAnswer(example) {
  const [whose, answer] = example.source === null ? ["target", example.target] : ["source", example.source];
  if (answer === null) return null;
  return [el("h3", {}, `Answer of the ${whose}`), messageBlock(`The answer of the ${whose}`, answer)];
}

function exampleBar(example, differences, { onClose, previous, next }) {
  const title = example.request.split("\n", 1)[0].replace(/ HTTP\/[\d.]+$/, "");
  const chips = differences.map((d) => el("span", { class: `mark ${d.kind}` }, d.path || d.kind));
  return el(
    "header",
    { class: "example-bar" },
    el("h2", { id: "example-title", class: "mono", tabindex: -1 }, title),
    el(
      "div",
      { class: "chips" },
      el("span", { class: `mark ${verdictClass(example.verdict)}` }, example.verdict),
      chips,
    ),
    el(
      "div",
      { class: "example-buttons" },
      stepButton("←", "Previous example", previous),
      stepButton("→", "Next example", next),
      el("button", { click: onClose, "aria-label": "Close" }, "Close"),
    ),
  );
}

function stepButton(sign, name, go) {
  return el("button", { "aria-label": name, title: name, disabled: !go, click: () => go() }, sign);
}

function exampleFacts(example) {
  const times = example.source_us && example.target_us ? ` (${factor(example.target_us / example.source_us)})` : "";
  const facts = [
    ["Source took", duration(example.source_us)],
    ["Target took", duration(example.target_us) + times],
    ["Captured", moment(example.time_us)],
    ["Connection", example.connection],
  ];
  return el(
    "dl",
    { class: "facts" },
    facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))),
  );
}

function messageBlock(name, message) {
  const [head, body] = headAndBody(message);
  const words = body ? `${head}\n\n${prettyBody(body)}` : head;
  return el("pre", { class: "message", role: "region", tabindex: 0, "aria-label": name }, words);
}

function missingAnswers(example) {
  return [
    example.source === null ? el("p", { class: "note" }, "The capture holds no answer of the source.") : null,
    example.target === null
      ? el("p", { class: "note bad" }, `The target gave no answer: ${example.error ?? "no reason is known"}`)
      : null,
    example.target !== null && example.error ? el("p", { class: "note bad" }, example.error) : null,
  ];
}

function diffTable(caption, rows, found, ignored, around) {
  if (!rows.length) return null;
  const body = el("tbody");
  for (const run of runsOf(rows.slice(0, MOST_ROWS))) {
    const folded = run.same && run.rows.length > 2 * around + 2;
    if (!folded) body.append(...run.rows.map((row) => diffRow(row, found, ignored)));
    else body.append(...foldedRows(run, around, (row) => diffRow(row, found, ignored)));
  }
  return el(
    "table",
    { class: "diff" },
    el("caption", {}, caption),
    el(
      "thead",
      { class: "unseen" },
      el("tr", {}, el("th", { scope: "col" }, "Source"), el("th", { scope: "col" }, "Target")),
    ),
    body,
    rows.length > MOST_ROWS ? el("tfoot", {}, moreRows(rows.length - MOST_ROWS)) : null,
  );
}

function moreRows(number) {
  return el("tr", { class: "fold" }, el("td", { colspan: 2 }, `${count(number)} further lines are not shown`));
}

function runsOf(rows) {
  const runs = [];
  for (const row of rows) {
    if (runs.at(-1)?.same === row.same) runs.at(-1).rows.push(row);
    else runs.push({ same: row.same, rows: [row] });
  }
  return runs;
}

function foldedRows({ rows }, around, draw) {
  const hidden = rows.slice(around, -around);
  const fold = el("tr", { class: "fold" });
  const open = () => fold.replaceWith(...hidden.map(draw));
  fold.append(
    el("td", { colspan: 2 }, el("button", { click: open }, `${plural(hidden.length, "equal line", "equal lines")}`)),
  );
  return [...rows.slice(0, around).map(draw), fold, ...rows.slice(-around).map(draw)];
}

function diffRow({ left, right, same }, found, ignored) {
  if (same)
    return el("tr", { class: "same" }, el("td", {}, left.text + left.tail), el("td", {}, right.text + right.tail));
  const paths = [left, right].filter(Boolean).map((line) => line.path);
  const isFound = paths.some((path) => within(path, found));
  const isNoise = !isFound && paths.some((path) => within(path, ignored));
  const [was, is] =
    left && right ? changedParts(left.text, right.text) : [[[left?.text ?? "", false]], [[right?.text ?? "", false]]];
  return el(
    "tr",
    {
      class: isNoise ? "changed noise" : isFound ? "changed hit" : "changed",
      title: isNoise ? "Left out" : null,
    },
    side("left", left, was, "del"),
    side("right", right, is, "ins"),
  );
}

function side(name, line, parts, mark) {
  if (!line) return el("td", { class: `${name} none` });
  return el(
    "td",
    { class: name },
    parts.map(([text, changed]) => (changed ? el(mark, {}, text) : text)),
    line.tail,
  );
}
