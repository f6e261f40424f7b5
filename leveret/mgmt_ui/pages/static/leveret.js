// What pages need beside htmx: live figures, charts, the theme, and panels that close.
// Texts from the server go into the page as text, never as markup.
"use strict";
(() => {
  const NARROW = "\u202f";
  const charts = new Map(); // by name: {plot, spec}

  // ----- numbers, as formats.py writes them

  const count = (value) => Math.round(value).toString().replace(/\B(?=(\d{3})+$)/g, NARROW);
  const short = (value) => {
    for (const [limit, unit] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
      if (Math.abs(value) >= limit) return (value / (limit === 1e4 ? 1e3 : limit)).toPrecision(3) * 1 + unit;
    }
    return Number.isInteger(value) ? count(value) : String(Number(value.toPrecision(3)));
  };
  const size = (value) => {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = 0;
    while (Math.abs(value) >= 1000 && unit < units.length - 1) { value /= 1024; unit += 1; }
    return `${Number(value.toPrecision(3))}\u00a0${units[unit]}`;
  };
  const time = (value) => {
    if (value === 0) return "0";
    if (value < 1e-3) return `${Number((value * 1e6).toPrecision(3))}\u00a0µs`;
    if (value < 1) return `${Number((value * 1e3).toPrecision(3))}\u00a0ms`;
    return `${Number(value.toPrecision(3))}\u00a0s`;
  };
  const written = {
    count: short,
    rate: (value) => `${short(value)}/s`,
    bytes: size,
    "bytes-rate": (value) => `${size(value)}/s`,
    seconds: time,
    share: (value) => `${Math.round(value * 100)}\u00a0%`,
  };

  // ----- charts

  const HEIGHT = 180;
  const two = (value) => String(value).padStart(2, "0");
  const clock = (at, step) => {
    const date = new Date(at * 1000);
    if (step >= 86400) return `${two(date.getMonth() + 1)}-${two(date.getDate())}`;
    const minutes = `${two(date.getHours())}:${two(date.getMinutes())}`;
    return step < 60 ? `${minutes}:${two(date.getSeconds())}` : minutes;
  };
  const colour = (name) => {
    // The variables hold light-dark(); only a property of an element has the colour itself.
    const probe = document.createElement("i");
    probe.style.color = `var(${name})`;
    document.body.append(probe);
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  };

  function draw(element) {
    const spec = JSON.parse(element.dataset.chart);
    const old = charts.get(spec.name);
    if (old && old.element === element) { spec.data = old.plot.data; old.plot.destroy(); }
    const axis = { size: 30, stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const say = written[spec.unit];
    const plot = new uPlot({
      width: Math.max(element.clientWidth, 120),
      height: HEIGHT,
      cursor: { y: false, points: { size: 6 } },
      legend: { live: true },
      scales: { x: { range: (_, __, end) => { const last = end ?? Date.now() / 1000; return [last - spec.window, last]; } }, y: { range: (_, low, high) => [Math.min(low ?? 0, 0), high > 0 ? high * 1.1 : 1] } },
      axes: [{ ...axis, values: (_, splits, __, ___, step) => splits.map((at) => clock(at, step)) }, { ...axis, size: 64, values: (_, values) => values.map(say) }],
      series: [
        { label: "Time" },
        ...spec.labels.map((label, i) => ({
          label, stroke: colour(`--series-${i % 6 + 1}`), width: 1.5, points: { show: false }, spanGaps: false,
          value: (self, value, _, at) => {
            const shown = at == null ? self.data[i + 1].at(-1) : value;
            return shown == null ? "–" : say(shown) + (at == null ? "" : ` at ${clock(self.data[0][at], 1)}`);
          },
        })),
      ],
    }, spec.data, element);
    charts.set(spec.name, { plot, spec, element });
  }

  const drawAll = (root) => root.querySelectorAll("[data-chart]").forEach(draw);

  function append(name, point) {
    const chart = charts.get(name);
    if (!chart) return;
    const { plot, spec } = chart;
    const times = plot.data[0];
    if (times.length && point[0] <= times.at(-1)) return;
    const from = times.findIndex((at) => at >= point[0] - spec.window);
    const kept = from < 0 ? times.length : from;
    plot.setData(plot.data.map((column, i) => [...column.slice(kept), point[i] ?? null]));
  }

  let resizing = 0;
  addEventListener("resize", () => {
    cancelAnimationFrame(resizing);
    resizing = requestAnimationFrame(() => charts.forEach(({ plot, element }) => plot.setSize({ width: Math.max(element.clientWidth, 120), height: HEIGHT })));
  });

  // ----- live figures: only while the page is seen, as browsers have few connections to a host

  let events = null;
  let ticking = 0;

  function listen() {
    const address = document.body.dataset.live;
    if (!address || document.hidden || events) return;
    events = new EventSource(address);
    events.addEventListener("figures", (event) => {
      const { figures, points } = JSON.parse(event.data);
      for (const [name, text] of Object.entries(figures)) {
        document.querySelectorAll(`[data-figure="${CSS.escape(name)}"]`).forEach((element) => {
          if (element.textContent !== text) element.textContent = text;
        });
      }
      for (const [name, point] of Object.entries(points)) append(name, point);
    });
  }

  function tick() {
    // A list that somebody works in stays as it is: an open panel, a chosen box.
    const busy = document.querySelector("#list details[open], #list input:checked, #list :focus");
    if (!document.hidden && !busy) document.body.dispatchEvent(new CustomEvent("leveret:tick"));
  }

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) { events?.close(); events = null; } else { listen(); tick(); }
  });
  addEventListener("pagehide", () => { events?.close(); events = null; });
  addEventListener("pageshow", listen);

  // ----- the theme: what the system says until somebody chooses

  function switchTheme() {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    document.cookie = `leveret_theme=${root.dataset.theme}; path=/; max-age=31536000; samesite=strict`;
    drawAll(document);
  }

  // ----- panels and the menu

  const closePanels = (but) => document.querySelectorAll("details.action[open]").forEach((panel) => {
    if (panel !== but) panel.open = false;
  });

  document.addEventListener("click", (event) => {
    const menu = event.target.closest(".menu-button");
    if (menu) {
      const open = document.getElementById("navigation").classList.toggle("open");
      menu.setAttribute("aria-expanded", String(open));
    } else if (event.target.closest(".theme-button")) {
      switchTheme();
    }
    if (event.target.closest("[data-close]")) closePanels(null);
    else closePanels(event.target.closest("details.action"));
  });
  document.addEventListener("submit", (event) => {
    const question = event.submitter?.dataset.confirm;
    if (question && !confirm(question)) event.preventDefault();
  });
  document.addEventListener("input", (event) => {
    // Who fills in the field beside a choice has made it.
    const choice = event.target.dataset?.selects;
    if (choice) event.target.form.querySelector(`input[type=radio][value="${CSS.escape(choice)}"]`).checked = true;
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    const panel = document.querySelector("details.action[open]");
    closePanels(null);
    panel?.querySelector("summary").focus();
    const menu = document.querySelector(".menu-button[aria-expanded=true]");
    menu?.click();
    menu?.focus();
  });

  drawAll(document);
  document.body.addEventListener("htmx:afterSwap", (event) => drawAll(event.target));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawAll(document));
  listen();
  ticking = setInterval(tick, 5000);
  addEventListener("pagehide", () => clearInterval(ticking));
})();
