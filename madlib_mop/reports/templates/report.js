"use strict";
// Draws the figures of a report, sorts its tables, compares two models, copies texts. All texts are set as text.
(function () {
  const root = document.documentElement;

  // Colours are CSS variables, so that a figure follows the page's colours, and the printer's.
  const config = {
    aria: false,
    background: null,
    font: "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif",
    view: { stroke: null },
    axis: {
      domainColor: "var(--rule)", gridColor: "var(--rule)", tickColor: "var(--rule)", labelColor: "var(--soft)",
      titleColor: "var(--soft)", titleFontWeight: 400, labelFontSize: 12, titleFontSize: 12, titlePadding: 8,
      labelPadding: 5, gridOpacity: 0.7, labelLimit: 260,
    },
    axisXQuantitative: { tickCount: 8 },
    axisY: { domain: false, ticks: false },
    legend: {
      labelColor: "var(--ink)", titleColor: "var(--soft)", titleFontWeight: 400, labelFontSize: 12, titleFontSize: 12,
      symbolStrokeWidth: 2, rowPadding: 4, columnPadding: 14, columns: 6,
    },
    text: { fontSize: 12 },
    range: { category: [1, 2, 3, 4, 5, 6, 7, 8].map((i) => `var(--c${i})`) },
  };
  const drawn = new Map();

  function draw(chart) {
    const key = chart.dataset.figure;
    if (drawn.has(key) || !window.vegaEmbed || chart.offsetParent === null) return;
    drawn.set(key, true);
    const text = document.querySelector(`script[data-spec="${CSS.escape(key)}"]`).textContent;
    const spec = JSON.parse(text);
    const options = {
      ast: true, renderer: "svg", actions: false, mode: "vega-lite", config: configFor(chart.clientWidth),
      defaultStyle: false, tooltip: { disableDefaultStyle: true },
    };
    window.vegaEmbed(chart, spec, options).then(() => {
      chart.querySelector("svg").setAttribute("aria-hidden", "true"); // the chart's own label has the words
    }).catch((error) => {
      chart.textContent = "This figure could not be drawn.";
      console.error(error);
    });
  }
  const slim = { axis: { ...config.axis, labelLimit: 150 }, axisXQuantitative: { tickCount: 4 } };

  // In a narrow figure, legends are below each other, with as many columns as fit.
  function configFor(width) {
    if (width >= 760) return config;
    const columns = Math.max(2, Math.floor(width / 130));
    const legend = { ...config.legend, columns, labelLimit: 110, layout: { top: { direction: "vertical" } } };
    return { ...config, ...(width < 520 ? slim : {}), legend };
  }

  function drawAll() {
    const charts = [...document.querySelectorAll(".chart")].filter((chart) => !drawn.has(chart.dataset.figure));
    const next = () => {
      const chart = charts.shift();
      if (!chart) return;
      draw(chart);
      (window.requestIdleCallback || window.setTimeout)(next);
    };
    next();
  }

  // Learning curves: one of the groups of figures is shown.
  document.querySelectorAll("[data-choice]").forEach((choice) => {
    const name = choice.dataset.choice;
    const show = () => {
      const chosen = choice.querySelector("input:checked").value;
      document.querySelectorAll(`[data-group="${name}"]`).forEach((group) => {
        group.hidden = group.dataset.of !== chosen;
      });
      drawAll();
    };
    choice.hidden = false;
    choice.addEventListener("change", show);
    show();
  });

  // Tables are sorted by the buttons in their headings.
  document.querySelectorAll("table.sortable").forEach((table) => {
    const heads = [...table.tHead.rows[0].cells];
    const body = table.tBodies[0];
    const valueOf = (row, i) => {
      const cell = row.cells[i];
      const text = "v" in cell.dataset ? cell.dataset.v : cell.textContent.trim();
      const number = Number(text.replace(/[*,]/g, ""));
      return text === "" ? null : Number.isNaN(number) ? text : number;
    };
    const compare = (a, b) =>
      typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true });
    heads.forEach((head, i) => {
      head.querySelector("button").addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const rows = [...body.rows].map((row) => [valueOf(row, i), row]);
        rows.sort(([a], [b]) => (a === null) - (b === null) || (a === null ? 0 : down ? compare(b, a) : compare(a, b)));
        body.append(...rows.map(([, row]) => row));
      });
    });
  });

  // The difference of two models.
  const form = document.getElementById("pair");
  if (form) {
    const models = JSON.parse(document.getElementById("models").textContent);
    const body = document.querySelector("#pair-table tbody");
    const cell = (kind, text, scope) => {
      const made = document.createElement(kind);
      const inner = document.createElement("bdi");
      inner.textContent = text;
      made.append(inner);
      if (scope) made.scope = scope;
      else made.className = "wrap";
      return made;
    };
    const compare = () => {
      const keys = { first: form.elements.first.value, second: form.elements.second.value };
      const [a, b] = [models[keys.first], models[keys.second]];
      const names = [...new Set([...Object.keys(a), ...Object.keys(b)])];
      const rows = names
        .filter((name) => form.elements.all.checked || a[name] !== b[name])
        .map((name) => {
          const row = document.createElement("tr");
          row.append(cell("th", name, "row"), cell("td", a[name] ?? ""), cell("td", b[name] ?? ""));
          return row;
        });
      body.replaceChildren(...rows);
      document.querySelectorAll("[data-pair]").forEach((where) => {
        where.textContent = keys[where.dataset.pair];
      });
    };
    form.hidden = false;
    form.addEventListener("change", compare);
    form.addEventListener("submit", (event) => event.preventDefault());
  }

  // Texts that can be copied.
  document.querySelectorAll("[data-copy]").forEach((button) => {
    const words = button.firstChild;
    button.addEventListener("click", async () => {
      const from = document.querySelector(`[data-text="${CSS.escape(button.dataset.copy)}"]`);
      const range = document.createRange();
      range.selectNodeContents(from);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      try {
        await navigator.clipboard.writeText(from.textContent);
        words.textContent = "Copied";
      } catch {
        words.textContent = document.execCommand("copy") ? "Copied" : "Selected";
      }
      setTimeout(() => (words.textContent = "Copy"), 2000);
    });
  });

  // Light or dark colours: the system's, or those of the button.
  const button = document.getElementById("theme");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  const name = () => (button.textContent = isDark() ? "Light colours" : "Dark colours");
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    name();
  });
  dark.addEventListener("change", name);
  name();

  window.addEventListener("beforeprint", () => document.querySelectorAll(".chart").forEach(draw));
  drawAll();
})();
