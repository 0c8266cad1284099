"use strict";
// The whole script of a report's page: colour scheme, links into folded parts, and the values of curves at the pointer.
// It makes no network requests. Without it the page shows the same drawings.
(() => {
  const NEAR = 25; // largest distance in points of the drawing at which the pointer selects a point

  const make = (name, attributes = {}, ...children) => {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
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

  // ---- the values of the curve nearest to the pointer
  for (const data of document.querySelectorAll("figure > script")) {
    const figure = data.parentElement, svg = figure.querySelector("svg"), points = [];
    for (const panel of JSON.parse(data.textContent)) {
      const [left, top, width, height] = panel.box, [x0, x1] = panel.x, [y0, y1] = panel.y;
      for (const line of panel.lines) line.x.forEach((x, i) => points.push({
        x, y: line.y[i], name: line.name, what: panel.what,
        at: [left + (x - x0) / (x1 - x0) * width, top + (y1 - line.y[i]) / (y1 - y0) * height],
      }));
    }
    if (!points.length) continue;
    const tip = figure.appendChild(make("div", { class: "tip", role: "status", hidden: "" }));
    const mark = svg.appendChild(document.createElementNS("http://www.w3.org/2000/svg", "circle"));
    for (const [key, value] of Object.entries({ class: "mark", r: 4, visibility: "hidden" })) mark.setAttribute(key, value);
    const show = (point, event) => {
      tip.hidden = !point;
      mark.setAttribute("visibility", point ? "visible" : "hidden");
      if (!point) return;
      mark.setAttribute("cx", point.at[0]);
      mark.setAttribute("cy", point.at[1]);
      tip.replaceChildren(make("strong", {}, point.name), make("br"), `${point.what} ${short(point.x)}: ${short(point.y)}`);
      const box = figure.getBoundingClientRect();
      tip.style.left = `${Math.max(0, Math.min(box.width - tip.offsetWidth, event.clientX - box.left - tip.offsetWidth / 2))}px`;
      tip.style.top = `${event.clientY - box.top - tip.offsetHeight - 14}px`;
    };
    svg.addEventListener("pointermove", (event) => {
      const { x, y } = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
      const far = ({ at }) => Math.hypot(at[0] - x, at[1] - y);
      const nearest = points.reduce((best, point) => (far(point) < far(best) ? point : best));
      show(far(nearest) < NEAR ? nearest : null, event);
    });
    svg.addEventListener("pointerleave", () => show(null));
  }
})();
