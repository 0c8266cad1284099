"use strict";
// The whole script of a report's page: colour scheme, links into folded parts, and the interactive curves.
// It makes no network requests. Without it the page shows the same curves as drawings.
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const SMOOTHEST = 10; // evaluations on either side averaged at the slider's maximum
  const NEAR = 40; // largest distance in pixels at which the pointer selects a point

  const make = (name, attributes = {}, ...children) => {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  };
  const draw = (parent, name, attributes, text = "") => {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.textContent = text;
    return parent.appendChild(node);
  };
  const short = (value) => String(Number(value.toPrecision(4)));

  // ---- colour scheme: that of the system, unless the reader chooses one
  const SCHEMES = ["auto", "light", "dark"];
  const remembered = (value) => {
    try { // a page opened from a file may have no local storage
      if (value !== undefined) localStorage.setItem("cppo-scheme", value);
      return localStorage.getItem("cppo-scheme");
    } catch { return null; }
  };
  const schemeButton = make("button", { type: "button", class: "scheme" });
  const setScheme = (scheme) => {
    if (scheme === "auto") delete document.documentElement.dataset.scheme;
    else document.documentElement.dataset.scheme = scheme;
    schemeButton.textContent = `Colours: ${scheme}`;
    schemeButton.dataset.now = scheme;
  };
  schemeButton.addEventListener("click", () => {
    const next = SCHEMES[(SCHEMES.indexOf(schemeButton.dataset.now) + 1) % SCHEMES.length];
    remembered(next);
    setScheme(next);
  });
  setScheme(SCHEMES.includes(remembered()) ? remembered() : "auto");
  document.querySelector("header").prepend(schemeButton);

  // ---- a link unfolds its target and the sections around it
  const reveal = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    let folded = false;
    const own = target.querySelector(":scope > details");
    for (let box = own ?? target.closest("details"); box; box = box.parentElement.closest("details")) {
      folded ||= !box.open;
      box.open = true;
    }
    if (folded) target.scrollIntoView();
  };
  addEventListener("hashchange", reveal);
  // Following the same link again, after its section was folded, does not change the address.
  addEventListener("click", (event) => { if (event.target.closest?.("a")?.hash === location.hash) reveal(); });
  reveal();

  // ---- printing unfolds everything
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    for (const box of opened) box.open = true;
  });
  addEventListener("afterprint", () => { for (const box of opened) box.open = false; });

  // ---- `cppo ui --report` opens the page with MLflow's address: run ids then become links
  const mlflow = (() => {
    try {
      const found = new URL(new URLSearchParams(location.search).get("mlflow"));
      // A link must not inject a foreign page: only this machine and the page's own store are accepted.
      const near = ["localhost", "127.0.0.1", "[::1]"].includes(found.hostname);
      return near && found.protocol === "http:" ? found.origin + found.pathname.replace(/\/*$/, "/") : null;
    } catch { return null; }
  })();
  if (mlflow) {
    for (const code of document.querySelectorAll("code[data-page]")) {
      const link = make("a", { href: mlflow + code.dataset.page, rel: "noreferrer" });
      code.replaceWith(link);
      link.append(code);
    }
  }

  // ---- the table of contents highlights the current section
  const links = new Map([...document.querySelectorAll(".contents a")].map((link) => [link.hash.slice(1), link]));
  const seen = new Set();
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) seen[entry.isIntersecting ? "add" : "delete"](entry.target.id);
    const here = [...links.keys()].find((id) => seen.has(id));
    for (const [id, link] of links) id === here ? link.setAttribute("aria-current", "true") : link.removeAttribute("aria-current");
  }, { rootMargin: "-8% 0px -60% 0px" });
  for (const id of links.keys()) watcher.observe(document.getElementById(id));

  // ---- a note marks tables and drawings that overflow
  const measure = (box) => {
    const wider = box.scrollWidth - box.clientWidth > 2;
    box.classList.toggle("more", wider && box.scrollLeft < box.scrollWidth - box.clientWidth - 2);
    box.classList.toggle("moved", wider && box.scrollLeft > 2);
    const line = box.nextElementSibling?.classList.contains("wider") ? box.nextElementSibling : null;
    if (wider && !line) box.after(make("p", { class: "wider", "aria-hidden": "true" }, "\u2194 wider than the screen: scroll sideways"));
    if (!wider && line) line.remove();
  };
  const sizes = new ResizeObserver((entries) => { for (const entry of entries) measure(entry.target); });
  for (const box of document.querySelectorAll(".scroll")) {
    sizes.observe(box);
    box.addEventListener("scroll", () => measure(box), { passive: true });
  }

  // ---- curves
  const ticks = (low, high, count) => {
    const rough = (high - low || 1) / count;
    const unit = 10 ** Math.floor(Math.log10(rough));
    const step = unit * [1, 2, 5, 10].find((factor) => factor * unit >= rough * 0.999);
    const found = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(i * step);
    return found;
  };
  const smoothed = (values, reach) => !reach ? values : values.map((_, i) => {
    const side = Math.min(reach, i, values.length - 1 - i); // centred, so that the ends do not lag
    const part = values.slice(i - side, i + side + 1);
    return part.reduce((sum, value) => sum + value, 0) / part.length;
  });

  class Panel {
    constructor(explorer, figure, number) {
      Object.assign(this, { explorer, number, zoom: null, at: null });
      figure.classList.add("live");
      this.plot = figure.appendChild(make("div", { class: "plot" }));
      this.svg = document.createElementNS(SVG, "svg");
      this.svg.setAttribute("tabindex", "0");
      this.svg.setAttribute("role", "application");
      this.svg.setAttribute("aria-label", `Curves of ${explorer.data.panels[number]}. Arrow keys left and right go along ` +
        "a curve, up and down to the next; Enter goes to its runs.");
      this.tip = make("div", { class: "tip", role: "status", "aria-live": "polite", hidden: "" });
      this.whole = make("button", { type: "button", class: "whole", hidden: "" }, "Whole window");
      this.whole.addEventListener("click", () => this.setZoom(null));
      this.plot.append(this.svg, this.tip, this.whole);
      this.svg.addEventListener("pointermove", (event) => this.move(event));
      this.svg.addEventListener("pointerleave", () => { if (this.from === undefined) this.point(null); });
      this.svg.addEventListener("pointerdown", (event) => this.press(event));
      this.svg.addEventListener("pointerup", (event) => this.release(event));
      this.svg.addEventListener("pointercancel", () => { this.from = undefined; this.render(); });
      this.svg.addEventListener("dblclick", () => this.setZoom(null));
      this.svg.addEventListener("keydown", (event) => this.key(event));
      this.svg.addEventListener("blur", () => this.point(null));
      new ResizeObserver(() => { if (this.plot.clientWidth !== this.width) this.render(); }).observe(this.plot);
    }

    setZoom(zoom) {
      this.zoom = zoom;
      this.whole.hidden = !zoom;
      this.point(null);
      this.render();
    }

    render() {
      this.width = this.plot.clientWidth;
      if (!this.width) return;
      const most = this.explorer.data.panels.length > 2 ? 290 : 380;
      this.height = Math.round(Math.min(most, Math.max(230, this.width * 0.62)));
      const { explorer } = this;
      this.series = explorer.shown(this.number).map((series) => ({ ...series, s: smoothed(series.y, explorer.reach) }));
      this.svg.replaceChildren();
      this.svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
      this.svg.setAttribute("height", this.height);
      const xs = this.series.flatMap((series) => series.x);
      const [low, high] = this.zoom ?? [Math.min(...xs), Math.max(...xs)];
      const inside = (step) => step >= low && step <= high;
      const ys = this.series.flatMap((series) => series.y.filter((_, i) => inside(series.x[i])));
      if (!ys.length) {
        draw(this.svg, "text", { x: 12, y: 28, class: "quiet" }, "no curve to show");
        return;
      }
      let [bottom, top] = [Math.min(...ys), Math.max(...ys)];
      const air = (top - bottom || Math.abs(top) || 1) * 0.05;
      bottom = !this.zoom && bottom >= 0 ? 0 : bottom - air;
      top += air;
      const right = this.width - 14, base = this.height - 40, left = 52;
      const x = (step) => left + (step - low) / (high - low || 1) * (right - left);
      const y = (value) => base - (value - bottom) / (top - bottom) * (base - 12);
      Object.assign(this, { x, y, left, right, base, low, high });
      this.axes(bottom, top);
      const clip = `${explorer.key}-clip-${this.number}`;
      draw(draw(this.svg, "clipPath", { id: clip }), "rect", { x: left - 5, y: 0, width: right - left + 10, height: base + 5 });
      const lines = draw(this.svg, "g", { "clip-path": `url(#${clip})` });
      for (const series of this.series) {
        const style = { class: `line ${series.kind}`, style: `--c: ${series.colour}`, "data-method": series.m };
        const path = (values) => values.map((value, i) => `${i ? "L" : "M"}${x(series.x[i]).toFixed(1)} ${y(value).toFixed(1)}`).join("");
        if (explorer.reach) draw(lines, "path", { ...style, class: "raw", d: path(series.y) });
        const thin = series.kind === "run" && series.several ? " thin" : "";
        draw(lines, "path", { ...style, class: style.class + thin, d: path(series.s) });
        if (series.best) draw(lines, "circle", { cx: x(series.best[0]), cy: y(series.best[1]), r: 3.5, ...style, class: "best" });
        if (series.collapsed) {
          const [cx, cy] = [x(series.x.at(-1)), y(series.s.at(-1))];
          draw(lines, "path", { d: `M${cx - 5} ${cy - 5}L${cx + 5} ${cy + 5}M${cx - 5} ${cy + 5}L${cx + 5} ${cy - 5}`, ...style, class: "collapse" });
        }
      }
      this.band = draw(this.svg, "rect", { class: "band", y: 12, height: base - 12, width: 0 });
      this.mark = draw(this.svg, "circle", { class: "mark", r: 6, visibility: "hidden" });
    }

    axes(bottom, top) {
      for (const value of ticks(bottom, top, this.height / 60)) {
        draw(this.svg, "line", { class: "grid", x1: this.left, x2: this.right, y1: this.y(value), y2: this.y(value) });
        draw(this.svg, "text", { x: this.left - 7, y: this.y(value) + 4, "text-anchor": "end" }, short(value));
      }
      for (const step of ticks(this.low, this.high, this.width / 90)) {
        draw(this.svg, "line", { class: "grid", x1: this.x(step), x2: this.x(step), y1: 12, y2: this.base });
        draw(this.svg, "text", { x: this.x(step), y: this.base + 16, "text-anchor": "middle" }, short(step));
      }
      draw(this.svg, "line", { class: "axis", x1: this.left, x2: this.right, y1: this.base, y2: this.base });
      draw(this.svg, "text", { x: this.right, y: this.height - 5, "text-anchor": "end", class: "quiet" }, "training step");
      draw(this.svg, "text", { x: -12, y: 11, transform: "rotate(-90)", "text-anchor": "end", class: "quiet" }, this.explorer.view.axis);
    }

    place(event) {
      const box = this.svg.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    }

    nearest(px, py) {
      let found = null, least = NEAR ** 2;
      this.series.forEach((series, n) => series.x.forEach((step, i) => {
        if (step < this.low || step > this.high) return;
        const far = (this.x(step) - px) ** 2 + (this.y(series.s[i]) - py) ** 2;
        if (far < least) [found, least] = [{ n, i }, far];
      }));
      return found;
    }

    move(event) {
      const [px, py] = this.place(event);
      if (this.from === undefined) this.point(this.nearest(px, py));
      else {
        this.band.setAttribute("x", Math.min(px, this.from));
        this.band.setAttribute("width", Math.abs(px - this.from));
      }
    }

    press(event) {
      if (event.pointerType !== "mouse") this.point(this.nearest(...this.place(event)));
      else if (event.button === 0) {
        this.from = this.place(event)[0];
        this.svg.setPointerCapture(event.pointerId);
      }
    }

    release(event) {
      if (this.from === undefined) return;
      const px = this.place(event)[0], from = this.from;
      this.from = undefined;
      this.band.setAttribute("width", 0);
      if (Math.abs(px - from) < 5) { this.follow(); return; }
      const step = (at) => this.low + (Math.min(this.right, Math.max(this.left, at)) - this.left) / (this.right - this.left) * (this.high - this.low);
      this.setZoom([step(Math.min(px, from)), step(Math.max(px, from))]);
    }

    key(event) {
      if (event.key === "Escape") { this.setZoom(null); return; }
      if (event.key === "Enter") { this.follow(); return; }
      const go = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
      if (!go || !this.series?.length) return;
      event.preventDefault();
      const old = this.at ?? { n: 0, i: -1 };
      const n = (old.n + go[0] + this.series.length) % this.series.length;
      const inside = this.series[n].x.flatMap((step, i) => (step >= this.low && step <= this.high ? [i] : []));
      if (inside.length) this.point({ n, i: Math.min(inside.at(-1), Math.max(inside[0], old.i + go[1])) });
    }

    follow() {
      const runs = this.at && this.series[this.at.n].runs;
      if (runs) location.hash = runs;
    }

    point(at) {
      this.at = at;
      this.tip.hidden = !at;
      this.mark?.setAttribute("visibility", at ? "visible" : "hidden");
      if (!at) return;
      const series = this.series[at.n], px = this.x(series.x[at.i]), py = this.y(series.s[at.i]);
      this.mark.setAttribute("cx", px);
      this.mark.setAttribute("cy", py);
      this.mark.style.setProperty("--c", series.colour);
      const mean = this.explorer.reach ? ` (smoothed ${short(series.s[at.i])})` : "";
      this.tip.replaceChildren(make("strong", {}, series.label), make("br"), `step ${short(series.x[at.i])}: ${short(series.y[at.i])}${mean}`, make("br"), series.name);
      const wide = this.tip.offsetWidth, over = py > this.tip.offsetHeight + 18;
      this.tip.style.left = `${Math.min(this.width - wide, Math.max(0, px - wide / 2))}px`;
      this.tip.style.top = `${over ? py - this.tip.offsetHeight - 12 : py + 14}px`;
    }
  }

  class Explorer {
    constructor(box, data, key) {
      Object.assign(this, { data, key, view: data.views[0], hidden: new Set(), reach: 0, paper: false });
      box.querySelectorAll("[hidden]").forEach((node) => { node.hidden = false; });
      box.classList.add("on");
      const controls = box.querySelector(".controls");
      controls.append(...this.controls());
      this.panels = [...box.querySelectorAll("figure")].map((figure, number) => new Panel(this, figure, number));
      this.render();
    }

    controls() {
      const legend = make("div", { class: "toggles", role: "group", "aria-label": "Methods shown" });
      this.data.methods.forEach(([label, colour], m) => {
        const button = make("button", { type: "button", "aria-pressed": "true" }, make("span", { class: "swatch" }), label);
        button.firstChild.style.setProperty("--c", colour);
        button.addEventListener("click", () => {
          if (!this.hidden.delete(m)) this.hidden.add(m);
          button.setAttribute("aria-pressed", String(!this.hidden.has(m)));
          this.render();
        });
        legend.append(button);
      });
      const views = make("select");
      this.data.views.forEach((view, i) => views.append(make("option", { value: i }, view.name)));
      views.addEventListener("change", () => {
        this.view = this.data.views[views.value];
        this.panels.forEach((panel) => panel.setZoom(null));
      });
      const slider = make("input", { type: "range", min: 0, max: SMOOTHEST, value: 0 });
      const said = make("output", {}, "off");
      slider.addEventListener("input", () => {
        this.reach = Number(slider.value);
        said.textContent = this.reach ? `mean of ${2 * this.reach + 1} points` : "off";
        this.render();
      });
      const row = make("div", { class: "settings" });
      if (this.data.views.length > 1) row.append(make("label", {}, "Show ", views));
      row.append(make("label", {}, "Smoothing ", slider, " ", said));
      if (this.data.views.some((view) => view.series.some((series) => series.kind === "paper"))) {
        const tick = make("input", { type: "checkbox" });
        tick.addEventListener("change", () => { this.paper = tick.checked; this.render(); });
        row.append(make("label", {}, tick, " the paper's curves (dashed)"));
      }
      const hint = "Point at a curve for its values, click for its runs, drag to zoom in.";
      return [legend, row, make("p", { class: "quiet" }, hint)];
    }

    shown(panel) {
      const own = this.view.series.filter((series) => series.p === panel);
      return own.filter((series) => !this.hidden.has(series.m) && (this.paper || series.kind !== "paper")).map((series) => {
        const [method, colour] = this.data.methods[series.m];
        const label = series.kind === "paper" ? `${method}, the paper's curve` : method;
        return { ...series, label, colour, several: own.some((other) => other.m === series.m && other.kind === "mean") };
      });
    }

    render() {
      this.panels.forEach((panel) => { panel.point(null); panel.render(); });
    }
  }

  document.querySelectorAll(".explorer").forEach((box) => {
    new Explorer(box, JSON.parse(box.querySelector("script").textContent), box.id);
  });
})();
