// The upper part of the page: verdict, gates, fidelity, and the two charts.

function drawVerdict() {
  const { summary } = view;
  const span =
    summary.first_us === null ? null : `${moment(summary.first_us)}, ${duration(summary.last_us - summary.first_us)}`;
  const facts = [summary.origin, span, ...view.passed_over].filter(Boolean);
  put(
    "verdict",
    el("p", { class: "overline" }, summary.title),
    el("h1", { class: `state-${view.state}` }, view.headline),
    el("p", { class: "subline" }, view.detail),
    ...(summary.exchanges
      ? [verdictBar(summary.verdicts, summary.exchanges), verdictLegend(summary.verdicts, summary.exchanges)]
      : []),
    el(
      "p",
      { class: "soft facts-line" },
      facts.map((fact) => el("span", {}, fact)),
    ),
  );
}

function drawGates() {
  const { gates } = view.summary;
  const rows = gates.map((gate) =>
    el(
      "li",
      { class: gate.passed ? "passed" : "failed" },
      el("span", { class: `mark ${gate.passed ? "good" : "bad"}` }, gate.passed ? "passed" : "failed"),
      el("code", {}, gate.rule),
      el("span", { class: "num" }, gate.found),
    ),
  );
  const none = el(
    "p",
    { class: "soft" },
    "No gates were set. With --fail-on, such as mismatch>1%, the report decides by itself.",
  );
  put("gate-list", rows.length ? el("ul", { class: "gates" }, rows) : none);
}

function drawFidelity() {
  const { fidelity } = view.summary;
  const drift = fidelity.drift_us_per_s;
  const figures = [
    ["Late p50", duration(fidelity.late_p50_us)],
    ["Late p99", duration(fidelity.late_p99_us)],
    ["Late max", duration(fidelity.late_max_us)],
    [
      "Drift",
      drift === null ? MISSING : `${drift > 0 ? "+" : ""}${duration(drift)} / s`,
      "How fast lateness grows over the run",
    ],
    [
      "Out of order",
      count(fidelity.order_violations),
      "Requests that overtook another of their connection",
      fidelity.order_violations ? "bad" : "",
    ],
    ["Connections", count(fidelity.connections)],
    [
      "Requests each",
      fidelity.reuse === null ? MISSING : digits(fidelity.reuse),
      "Requests for each connection, on average",
    ],
  ];
  put(
    "fidelity-figures",
    ...figures.map(([name, value, hint, state]) =>
      el("div", { title: hint }, el("dt", {}, name), el("dd", { class: state }, value)),
    ),
  );
}

function drawTimeline() {
  const { timeline, first_us: first, last_us: last } = view.summary;
  if (!timeline.length) return put("timeline-chart", nothing("Nothing was sent."));
  const step = (timeline.length > 1 ? timeline[1].start_us - timeline[0].start_us : last - first) || 1e6;
  return put(
    "timeline-chart",
    legend(["sent", "sent"], ["different", "mismatch"], ["late p50", "p50"], ["late p99", "p99"]),
    timelineChart(timeline, step),
  );
}

function drawLatency() {
  put("latency-chart", ...latency(view.summary));
}

function latency({ source, target }) {
  if (!source.length && !target.length) return [nothing("There are no durations to compare.")];
  return [latencyChart(source, target), percentileTable(source, target)];
}
