// The live pages: applies the server's updates, draws the figures, and asks before a command is issued.
// Texts of the record come as HTML that the server has escaped; the policy of the page runs no other script.

const liveState = document.getElementById("live-state");
const message = document.getElementById("message");
const say = document.getElementById("say");
const SAY_EVERY_MS = 30_000;
const FIGURES_EVERY_MS = 10_000;
let saidAt = 0;
let lastState = null;

function showLocalTimes(root) {
  for (const time of root.querySelectorAll("time[datetime]")) {
    const at = new Date(time.dateTime);
    if (!Number.isNaN(at.valueOf())) time.title = at.toLocaleString();
  }
}

function setState(text, kind) {
  if (!liveState || liveState.textContent === text) return;
  liveState.textContent = text;
  liveState.dataset.kind = kind;
}

// ---- updates

function applyPart(name, html) {
  const element = document.getElementById(`part-${name}`);
  if (!element) return;
  const parsed = document.createElement(["TR", "TFOOT"].includes(element.tagName) ? element.tagName : "div");
  parsed.innerHTML = html;
  showLocalTimes(parsed);
  if (parsed.innerHTML === element.innerHTML) return;
  const focused = focusIn(element);
  const scrolled = [...element.querySelectorAll(".scroll")].map((box) => box.scrollLeft);
  element.replaceChildren(...parsed.childNodes);
  [...element.querySelectorAll(".scroll")].forEach((box, n) => { box.scrollLeft = scrolled[n] ?? 0; });
  if (focused) element.querySelector(focused)?.focus();
}

function focusIn(element) {
  const active = document.activeElement;
  if (!active || !element.contains(active)) return null;
  if (active.dataset.verb) {
    const key = active.dataset.key ? `[data-key="${CSS.escape(active.dataset.key)}"]` : ":not([data-key])";
    return `[data-verb="${CSS.escape(active.dataset.verb)}"]${key}`;
  }
  return active.matches("a[href]") ? `a[href="${CSS.escape(active.getAttribute("href"))}"]` : null;
}

function rowOf(html) {
  const template = document.createElement("template");
  template.innerHTML = html.trim();
  return template.content.firstElementChild;
}

function applyRows(rows, order) {
  const body = document.getElementById("rows");
  if (!body || (liveState?.dataset.page ?? "1") !== "1") return;
  for (const [key, html] of Object.entries(rows ?? {})) {
    const fresh = rowOf(html);
    showLocalTimes(fresh);
    const row = body.querySelector(`tr[data-key="${CSS.escape(key)}"]`);
    if (!row) { body.append(fresh); continue; }
    row.className = fresh.className;
    const cells = [...fresh.children];
    [...row.children].forEach((cell, n) => {
      if (!cells[n] || cell.innerHTML === cells[n].innerHTML) return;
      const focused = focusIn(cell);
      cell.replaceWith(cells[n]);
      cells[n].classList.add("changed");
      if (focused) cells[n].querySelector(focused)?.focus();
    });
  }
  if (!order) return;
  const active = document.activeElement;
  const wanted = new Set(order);
  for (const row of [...body.children]) if (!wanted.has(row.dataset.key)) row.remove();
  order.forEach((key, n) => {
    const row = body.querySelector(`tr[data-key="${CSS.escape(key)}"]`);
    if (row && body.children[n] !== row) body.insertBefore(row, body.children[n] ?? null);
  });
  if (active !== document.activeElement && body.contains(active)) active.focus();
}

function tell(text) {
  if (!say || !text) return;
  const state = text.split(":")[0];
  if (state === lastState && Date.now() < saidAt + SAY_EVERY_MS) return;
  say.textContent = text;
  saidAt = Date.now();
  lastState = state;
}

function apply(parts) {
  for (const name of ["head", "progress", "columns", "baselines", "segments", "failures", "commands", "counts", "jobs"]) {
    if (name in parts) applyPart(name, parts[name]);
  }
  if (parts.rows || parts.order) applyRows(parts.rows, parts.order);
  tell(parts.say);
  if ("visits" in parts || "state" in parts) wantFigures();
}

function watch() {
  const source = new EventSource(liveState.dataset.events);
  const read = (event) => {
    setState("live", "live");
    if (event.data) apply(JSON.parse(event.data));
  };
  source.addEventListener("state", read);
  source.addEventListener("change", read);
  source.addEventListener("end", () => {
    source.close();
    setState("updates have ended: load the page again", "ended");
  });
  source.addEventListener("error", () => {
    setState(source.readyState === EventSource.CLOSED ? "updates have ended: load the page again" : "reconnecting",
             "ended");
  });
  window.addEventListener("pagehide", () => source.close());
}

// ---- figures

const figures = document.getElementById("figures");
const drawn = new Map();
let latest = [];
let figuresTag = null;
let figuresAt = -Infinity;
let figuresTimer = null;
let vegaLoads = null;

function wantFigures() {
  if (!figures || figuresTimer !== null) return;
  const wait = Math.max(0, figuresAt + FIGURES_EVERY_MS - performance.now());
  figuresTimer = setTimeout(loadFigures, wait);
}

function loadVega() {
  vegaLoads ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = figures.dataset.vega;
    script.onload = resolve;
    script.onerror = () => {
      script.remove();
      vegaLoads = figuresTag = null; // the next load of the figures tries again, although they are the same
      reject(new Error("the figures' script cannot be loaded"));
      wantFigures();
    };
    document.head.append(script);
  });
  return vegaLoads;
}

async function loadFigures() {
  figuresAt = performance.now();
  figuresTimer = null;
  try {
    const headers = figuresTag ? { "If-None-Match": figuresTag } : {};
    const response = await fetch(figures.dataset.source, { headers, cache: "no-store" });
    if (response.status === 304) return;
    if (!response.ok) throw new Error(`status ${response.status}`);
    figuresTag = response.headers.get("ETag");
    latest = await response.json();
    placeFigures();
    await drawFigures();
  } catch (error) {
    cannotDraw(error);
  }
}

function cannotDraw(error) {
  if (!drawn.size) note(`The figures cannot be drawn: ${error.message}`);
}

function note(text) {
  const paragraph = document.getElementById("figures-note");
  paragraph.textContent = text;
  paragraph.hidden = !text;
}

function placeFigures() {
  note(latest.length ? "" : "There is nothing to draw yet.");
  for (const section of figures.querySelectorAll(".figure-section")) {
    const own = latest.filter((figure) => figure.section === section.dataset.section);
    section.hidden = !own.length;
    for (const old of section.querySelectorAll(":scope > figure")) {
      if (!own.some((figure) => old.id === figure.id)) old.remove();
    }
    for (const figure of own) place(figure, section);
  }
  const about = document.getElementById("not-recorded");
  if (about) about.hidden = latest.some((figure) => ["held-out", "columns"].includes(figure.section));
  for (const [key, { view, chart }] of drawn) {
    if (chart.isConnected) continue;
    view.finalize();
    drawn.delete(key);
  }
}

// Tables are shown before this. Newer figures end the drawing of older ones.
async function drawFigures() {
  const list = latest;
  if (list.some((figure) => figure.spec)) await loadVega();
  for (const figure of list) if (list === latest) await draw(figure);
}

function place(figure, section) {
  const fresh = rowOf(figure.html);
  const old = document.getElementById(fresh.id);
  const chart = fresh.querySelector(":scope > .chart");
  const oldChart = old?.querySelector(":scope > .chart");
  if (!old || !chart !== !oldChart) { // it is new, or a table became a chart, or a chart a table
    fresh.dataset.axis = figure.axis ?? "";
    fresh.hidden = !isShown(figure);
    if (old) old.replaceWith(fresh);
    else section.append(fresh);
    return;
  }
  const wasOpen = old.querySelector("details")?.open;
  for (const part of ["h4", "p.muted", "p.finding", ".numbers > .scroll", ".numbers > .note", "details"]) {
    const before = old.querySelector(`:scope > ${part}`), now = fresh.querySelector(`:scope > ${part}`);
    if (before && now && before.innerHTML !== now.innerHTML) before.replaceChildren(...now.childNodes);
  }
  oldChart?.setAttribute("aria-label", chart.getAttribute("aria-label"));
  if (wasOpen) old.querySelector("details").open = true;
}

function isShown(figure) {
  return !figure.axis || figure.axis === document.querySelector("input[name=axis]:checked")?.value;
}

figures?.addEventListener("change", (event) => {
  if (event.target.name !== "axis") return;
  for (const element of figures.querySelectorAll("figure")) {
    element.hidden = !isShown({ axis: element.dataset.axis });
  }
  drawFigures().catch(cannotDraw);
});

// A figure is drawn once. Later, it gets new data if only these have changed.
async function draw(figure) {
  const chart = document.querySelector(`#${CSS.escape(figure.id)} > .chart`);
  if (!chart || !isShown(figure)) return;
  const spec = JSON.parse(figure.spec);
  const shape = JSON.stringify({ ...spec, datasets: Object.keys(spec.datasets ?? {}) });
  const before = drawn.get(figure.key);
  if (before?.text === figure.spec && before.chart === chart) return;
  if (before?.shape === shape && before.chart === chart) {
    try {
      for (const [name, values] of Object.entries(spec.datasets)) before.view.data(name, values);
      await before.view.runAsync();
      before.text = figure.spec;
      return;
    } catch { /* it is drawn anew below */ }
  }
  before?.view.finalize();
  const config = themeFor(chart.clientWidth);
  const { view } = await window.vegaEmbed(chart, spec, {
    ast: true, actions: false, renderer: "svg", defaultStyle: false, mode: "vega-lite", config, logLevel: 1,
    tooltip: { disableDefaultStyle: true },
  });
  chart.querySelector("svg").setAttribute("aria-hidden", "true"); // the chart's own label has the words
  drawn.set(figure.key, { view, shape, chart, text: figure.spec });
}

// The colours are variables of the sheet of reports, so figures follow the colours of the page.
const THEME = {
  aria: false, background: null, font: "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif",
  view: { stroke: null },
  axis: {
    domainColor: "var(--rule)", gridColor: "var(--rule)", tickColor: "var(--rule)", labelColor: "var(--soft)",
    titleColor: "var(--soft)", titleFontWeight: 400, labelFontSize: 12, titleFontSize: 12, titlePadding: 8,
    labelPadding: 5, gridOpacity: 0.7, labelLimit: 160,
  },
  axisY: { domain: false, ticks: false },
  legend: {
    labelColor: "var(--ink)", titleColor: "var(--soft)", titleFontWeight: 400, labelFontSize: 12, titleFontSize: 12,
    symbolStrokeWidth: 2, rowPadding: 4, columnPadding: 14,
  },
  text: { fontSize: 12 },
  range: { category: [1, 2, 3, 4, 5, 6, 7, 8].map((i) => `var(--c${i})`) },
};
const SLIM = { axis: { ...THEME.axis, labelLimit: 150 }, axisXQuantitative: { tickCount: 4 } };

// In a narrow figure, legends are below each other, with as many columns as fit.
function themeFor(width) {
  if (width >= 760) return THEME;
  const columns = Math.max(2, Math.floor(width / 130));
  const legend = { ...THEME.legend, columns, labelLimit: 110, layout: { top: { direction: "vertical" } } };
  return { ...THEME, ...(width < 520 ? SLIM : {}), legend };
}

// ---- commands

function openDialog(button) {
  const { verb, key } = button.dataset;
  const dialog = document.getElementById(`dialog-${verb}`);
  if (!dialog) return;
  const form = dialog.querySelector("form");
  form.reset();
  form.querySelector(".error").hidden = true;
  const title = dialog.querySelector("h2");
  title.dataset.text ??= title.textContent;
  const what = verb === "extend" ? (key ? `model ${key}` : "all models") : key ?? "";
  title.textContent = title.dataset.text.replace("{key}", what);
  if (form.elements.mst_key) form.elements.mst_key.value = key ?? "";
  if (verb === "clone_model") {
    form.elements.compile_params.value = button.dataset.compile;
    form.elements.fit_params.value = button.dataset.fit;
  }
  if (verb === "pin_model") {
    form.elements.pinned.value = button.dataset.pinned;
    title.textContent = `${button.dataset.pinned === "true" ? "Pin" : "Unpin"} model ${key}?`;
  }
  dialog.showModal();
}

async function issue(form) {
  const button = form.querySelector("button:not([type])");
  const error = form.querySelector(".error");
  button.disabled = true;
  error.hidden = true;
  try {
    const response = await fetch(form.action, {
      method: "POST", body: new URLSearchParams(new FormData(form)), headers: { Accept: "application/json" },
    });
    const isJson = (response.headers.get("Content-Type") ?? "").startsWith("application/json");
    const answer = isJson ? await response.json() : { error: `The command was not accepted (${response.status}).` };
    if (!response.ok) throw new Error([answer.error, answer.hint].filter(Boolean).join(" "));
    form.closest("dialog").close();
    message.textContent = answer.message;
    message.hidden = false;
  } catch (failure) {
    error.textContent = failure.message;
    error.hidden = false;
  } finally {
    button.disabled = false;
  }
}

document.addEventListener("click", (event) => {
  const button = event.target.closest?.("button");
  if (button?.dataset.verb) openDialog(button);
  if (button && "close" in button.dataset) button.closest("dialog").close();
});
document.addEventListener("submit", (event) => {
  if (!event.target.closest("dialog")) return;
  event.preventDefault();
  issue(event.target);
});

showLocalTimes(document);
if (liveState) watch();
wantFigures();
