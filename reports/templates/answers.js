// The part of a page with answers: maps of problems, texts, and tokens under rules. Model output goes into
// text nodes only and is never parsed as markup.
(() => {
  const store = document.getElementById("answers-data");
  if (!store) return;
  const data = JSON.parse(store.textContent);
  const root = store.parentElement.querySelector(".answers");
  const CHUNK = 256; // tokens per lazily laid-out chunk: chunks off the screen cost nothing
  const NEAR = 4; // chunks on either side of the chosen token's that are laid out even off the screen
  const LEVELS = 12; // levels of a colour
  const FULL = 60000, NOT_SEEN = 65535; // special values of a map

  const make = (name, attributes = {}, ...children) => {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  };
  const bytes = (text) => Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0));
  const counts = (text) => { // 16 bits, little-endian
    const raw = bytes(text);
    return Uint16Array.from({ length: raw.length / 2 }, (_, i) => raw[2 * i] | (raw[2 * i + 1] << 8));
  };
  const halves = (text) => { // half-precision floats, little-endian
    const raw = bytes(text), found = new Float32Array(raw.length / 2);
    for (let i = 0; i < found.length; i++) {
      const bits = raw[2 * i] | (raw[2 * i + 1] << 8), exponent = (bits >> 10) & 31, rest = bits & 1023;
      const size = exponent ? (1 + rest / 1024) * 2 ** (exponent - 15) : rest * 2 ** -24;
      found[i] = bits & 32768 ? -size : size;
    }
    return found;
  };
  const short = (value) => value >= 65504 ? "∞" : value === 0 ? "0" : Math.abs(value) < 1e-3 || Math.abs(value) >= 1e4
    ? value.toExponential(2) : String(Number(value.toPrecision(3)));
  const percent = (share) => `${Number((100 * share).toFixed(1))} %`;
  const models = new Set([...data.texts.samples, ...data.tokens].map((one) => one.model));
  const place = (one) => `${models.size > 1 ? `${one.model}, ` : ""}${one.method}, step ${one.step}, group ${one.group}`;
  const unique = (values) => [...new Set(values)];
  // A <select> with its label; `fill` keeps the selected option if it still exists.
  const chooser = (label, changed) => {
    const select = make("select", { "aria-label": label });
    select.addEventListener("change", changed);
    return {
      select,
      box: make("label", {}, `${label} `, select),
      get value() { return select.value; },
      fill(options, wanted = select.value) {
        select.replaceChildren(...options.map(([value, text]) => make("option", { value }, text)));
        if (options.some(([value]) => String(value) === String(wanted))) select.value = wanted;
        return this;
      },
    };
  };
  const named = (values) => values.map((value) => [value, String(value)]);
  const section = (title, ...children) => {
    const heading = make("h3", {}, title);
    root.append(heading, ...children);
    return heading;
  };

  let showTexts = () => {}; // for a problem, method and step; called by the maps

  // ---- problems by step
  const drawMaps = () => {
    const model = chooser("Model", () => show());
    const problem = chooser("Problem", () => choose(Number(problem.value), null));
    const ours = chooser("Solved by", () => alone());
    const theirs = chooser("and never by", () => alone());
    const figures = make("div", { class: "maps" });
    const tip = make("p", { class: "quiet", role: "status", "aria-live": "polite" });
    const names = make("div", { class: "names" });
    const shares = make("div");
    let map, panels, at = { problem: 0, step: 0, method: 0 };

    const colours = () => {
      const probe = make("span"), style = (name) => {
        probe.style.color = `var(${name})`;
        return getComputedStyle(probe).color.match(/[\d.]+/g).slice(0, 3).map(Number);
      };
      root.append(probe);
      const found = [style("--none"), style("--all"), style("--line")];
      probe.remove();
      return found;
    };
    const paint = () => {
      const [none, all, blank] = colours();
      for (const panel of panels) {
        const context = panel.canvas.getContext("2d");
        const image = context.createImageData(map.steps.length, map.problems.length);
        for (let step = 0; step < map.steps.length; step++) {
          for (let row = 0; row < map.problems.length; row++) {
            const value = panel.cells[step * map.problems.length + row], share = value / FULL;
            const colour = value === NOT_SEEN ? blank : none.map((low, i) => low + (all[i] - low) * share);
            image.data.set([...colour, value === NOT_SEEN ? 90 : 255], 4 * (row * map.steps.length + step));
          }
        }
        context.putImageData(image, 0, 0);
      }
    };
    const share = (method, step, row) => {
      const value = panels[method].cells[step * map.problems.length + row];
      return value === NOT_SEEN ? null : value / FULL;
    };
    const mark = () => {
      panels.forEach((panel, method) => {
        const { spot } = panel;
        spot.style.left = `calc(${100 * at.step / map.steps.length}% - 2px)`;
        spot.style.width = `max(6px, calc(${100 / map.steps.length}% + 4px))`;
        spot.style.top = `calc(${100 * at.problem / map.problems.length}% - 2px)`;
        spot.style.height = `max(6px, calc(${100 / map.problems.length}% + 4px))`;
        spot.style.opacity = method === at.method ? 1 : 0.35;
      });
      const value = share(at.method, at.step, at.problem);
      tip.textContent = `${map.problems[at.problem]}, ${map.methods[at.method].name}, step ${map.steps[at.step]}: ` +
        (value === null ? "not validated" : `${percent(value)} right`);
      problem.select.value = at.problem;
    };
    const choose = (row, step, method = at.method, settled = true) => {
      at = { problem: Math.max(0, Math.min(map.problems.length - 1, row)), method,
        step: step === null ? at.step : Math.max(0, Math.min(map.steps.length - 1, step)) };
      mark();
      if (!settled) return;
      const last = map.methods.map((one, number) => {
        for (let s = map.steps.length - 1; s >= 0; s--) {
          const value = share(number, s, at.problem);
          if (value !== null) return `${one.name} ${percent(value)} (step ${map.steps[s]})`;
        }
        return `${one.name}: not validated`;
      });
      shares.replaceChildren(make("p", { class: "quiet" }, `At the last validation: ${last.join("; ")}.`));
      showTexts(map.model, map.problems[at.problem], map.methods[at.method].name, map.steps[at.step]);
    };
    const alone = () => {
      const [a, b] = [Number(ours.value), Number(theirs.value)];
      const found = map.alone.find(([one, other]) => one === a && other === b)?.[2] ?? [];
      names.replaceChildren(...found.map((row) => {
        const button = make("button", { type: "button" }, map.problems[row]);
        button.addEventListener("click", () => choose(row, map.steps.length - 1, a));
        return button;
      }));
      if (!found.length) names.append(a === b ? "Choose two methods." : "None.");
    };
    const show = () => {
      map = data.maps[Number(model.value)];
      at = { problem: 0, step: map.steps.length - 1, method: 0 };
      const height = Math.round(Math.max(120, Math.min(420, 14 * map.problems.length)));
      panels = map.methods.map((method, number) => {
        const canvas = make("canvas", { width: map.steps.length, height: map.problems.length, tabindex: "0",
          role: "application", "aria-label": `Problems of ${method.name}, easy ones above, steps from left to right. ` +
            "Arrow keys move; Enter shows the problem." });
        canvas.style.height = `${height}px`;
        const spot = make("div", { class: "spot" });
        const frame = make("div", { class: "frame" }, canvas, spot);
        const found = (event) => {
          const box = canvas.getBoundingClientRect();
          return [Math.floor((event.clientY - box.top) / box.height * map.problems.length),
            Math.floor((event.clientX - box.left) / box.width * map.steps.length), number];
        };
        canvas.addEventListener("pointermove", (event) => { if (event.pointerType === "mouse") choose(...found(event), false); });
        canvas.addEventListener("click", (event) => choose(...found(event)));
        canvas.addEventListener("focus", () => { at.method = number; mark(); });
        canvas.addEventListener("keydown", (event) => {
          const moved = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
          if (moved) choose(at.problem + moved[0], at.step + moved[1], number, false);
          else if (event.key === "Enter" || event.key === " ") choose(at.problem, at.step, number);
          else return;
          event.preventDefault();
        });
        return { canvas, spot, cells: counts(method.cells), figure: make("figure", {},
          make("figcaption", {}, method.runs > 1 ? `${method.name} (mean of ${method.runs} runs)` : method.name), frame,
          make("div", { class: "ends" }, make("span", {}, `step ${map.steps[0]}`),
            make("span", {}, `${map.steps[map.steps.length - 1]}`))) };
      });
      figures.replaceChildren(...panels.map((panel) => panel.figure));
      problem.fill(map.problems.map((name, row) => [row, `${row + 1}. ${name}`]), 0);
      const methods = map.methods.map((method, number) => [number, method.name]);
      ours.fill(methods, methods.length - 1);
      theirs.fill(methods, 0);
      paint();
      alone();
      choose(0, null);
    };
    section("Problems by step",
      make("p", { class: "quiet" }, "A row is a problem, the easiest above (by the mean over all methods and steps); a column is a " +
        "validation. No answer right ", make("span", { class: "scale" }), " all right. Grey: not validated. Click a cell for its answers."),
      ...(data.maps.length > 1 ? [make("div", { class: "pick" }, model.box)] : []), figures, tip,
      make("div", { class: "pick" }, ours.box, theirs.box), names,
      make("div", { class: "pick" }, problem.box), shares);
    model.fill(data.maps.map((one, number) => [number, one.model]), 0);
    show();
    new MutationObserver(paint).observe(document.documentElement, { attributeFilter: ["data-scheme"] });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
    return () => { // prefer a problem with answers
      const kept = new Set(data.texts.samples.filter((one) => one.model === map.model && one.group === undefined).map((one) => one.problem));
      choose(Math.max(0, map.problems.findIndex((name) => kept.has(name))), null);
    };
  };

  // ---- texts
  // Equal answers of a run at a step are merged and listed by number.
  const WHOSE = ["method", "seed", "step", "text", "right", "answer", "truth", "length", "stop", "reward", "advantage"];
  const grouped = (samples) => {
    const found = new Map();
    for (const sample of samples) {
      const key = JSON.stringify(WHOSE.map((name) => sample[name] ?? null));
      found.set(key, [...(found.get(key) ?? []), sample]);
    }
    return [...found.values()];
  };
  const answerBox = (equal) => {
    const [sample] = equal, numbers = equal.map((one) => one.draw + 1);
    const which = numbers.length > 1 ? `${numbers.length} equal answers (${numbers.join(", ")})` : `answer ${numbers[0]}`;
    const facts = [`${sample.method}, seed ${sample.seed ?? "none"}, step ${sample.step}, ${which}: `,
      make("span", { class: `grade ${sample.right ? "right" : "wrong"}` }, sample.right ? "right" : "wrong"),
      sample.answer === undefined ? "; no answer found" : `; answered ${sample.answer}`,
      sample.truth === undefined ? "" : `, true is ${sample.truth}`, `; ${sample.length} tokens, stop: ${sample.stop}`];
    if (sample.reward !== undefined) facts.push(`; reward ${sample.reward}, advantage ${sample.advantage}`);
    const text = make("div", { class: "text", tabindex: "0", role: "group", "aria-label": "Response" });
    text.textContent = sample.text || "(empty)";
    return make("div", { class: "answer" }, make("p", {}, ...facts), text);
  };
  const promptBox = (number) => {
    const text = make("div", { class: "text", tabindex: "0", role: "group", "aria-label": "Prompt" });
    text.textContent = data.texts.prompts[number];
    return text;
  };
  const left = () => data.texts.left ? [make("p", { class: "quiet" },
    `${data.texts.left} more recorded answers did not fit on this page; cppo samples prints them.`)] : [];

  const drawTexts = () => {
    const all = data.texts.samples.filter((sample) => sample.group === undefined);
    if (!all.length) return;
    const found = make("div", { "aria-live": "polite" });
    const any = "any";
    let current = { model: all[0].model, problem: all[0].problem };
    const problem = chooser("Problem", () => { current.problem = problem.value; show(); });
    const method = chooser("Method", () => show());
    const step = chooser("Step", () => show());
    const show = () => {
      const here = all.filter((one) => one.model === current.model);
      problem.fill(named(unique([...here.map((one) => one.problem), current.problem])), current.problem);
      method.fill([[any, "all"], ...named(unique(here.map((one) => one.method)))]);
      step.fill([[any, "all"], ...named(unique(here.map((one) => one.step)).sort((a, b) => a - b))]);
      const own = here.filter((one) => one.problem === current.problem);
      const shown = own.filter((one) => (method.value === any || one.method === method.value) &&
        (step.value === any || String(one.step) === step.value));
      shown.sort((a, b) => a.step - b.step || a.draw - b.draw);
      found.replaceChildren(...(own.length ? [promptBox(own[0].prompt)] : []), ...grouped(shown).map(answerBox));
      if (!own.length) found.append(make("p", {}, "No answers to this problem are kept (tracking.answers.problems)."));
      else if (!shown.length) found.append(make("p", {}, "No answers are kept here: choose another step or method."));
    };
    section("Answers by step", make("div", { class: "pick" }, problem.box, method.box, step.box), found, ...left());
    showTexts = (model, wanted, chosen, at) => {
      current = { model, problem: wanted };
      show();
      const steps = [...step.select.options].slice(1).map((option) => Number(option.value));
      if (steps.length) step.select.value = steps.reduce((a, b) => Math.abs(b - at) < Math.abs(a - at) ? b : a);
      if ([...method.select.options].some((option) => option.value === chosen)) method.select.value = chosen;
      show();
    };
    show();
  };

  const drawGroups = () => {
    const all = data.texts.samples.filter((sample) => sample.group !== undefined);
    if (!all.length) return;
    const key = place;
    const found = make("div");
    const group = chooser("Group", () => show());
    const show = () => {
      const own = all.filter((one) => key(one) === group.value).sort((a, b) => a.draw - b.draw);
      const rows = own.map((one) => make("tr", {}, make("th", { scope: "row" }, String(one.draw + 1)),
        make("td", {}, one.right ? "right" : "wrong"), make("td", { class: "num" }, String(one.reward)),
        make("td", { class: "num" }, String(one.advantage)), make("td", { class: "num" }, String(one.length))));
      const head = ["Response", "Grade", "Reward", "Advantage", "Tokens"].map((text) => make("th", { scope: "col" }, text));
      const table = make("table", { class: "small rewards" }, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows));
      found.replaceChildren(promptBox(own[0].prompt),
        make("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Rewards of the group" }, table),
        ...grouped(own).map(answerBox));
    };
    section("Training groups", make("div", { class: "pick" }, group.box), found);
    group.fill(named(unique(all.map(key))));
    show();
  };

  // ---- tokens
  const COLOURS = [["none", "nothing"], ["ratio", "log-ratio, log π − log μ"], ["d", "divergence D_t"], ["w", "position weight w_t"],
    ["s", "prefix sum before t"], ["kept", "kept or dropped"]];

  class Response {
    constructor(raw) {
      this.raw = raw;
      this.n = raw.pieces.length;
      this.mu = halves(raw.mu);
      this.ratio = halves(raw.ratio);
      this.d = halves(raw.d);
      this.rules = raw.rules.map((rule) => ({ ...rule, reason: bytes(rule.reason), soft: rule.soft && halves(rule.soft),
        w: rule.w && halves(rule.w), s: rule.s && halves(rule.s), c: rule.c && halves(rule.c) }));
    }
  }

  const drawTokens = () => {
    if (!data.tokens.length) return;
    const opened = new Map(); // decoded on demand
    const which = chooser("Response", () => open());
    const first = chooser("Rule", () => build());
    const second = chooser("beside", () => build());
    const colour = chooser("Colour by", () => tint());
    const facts = make("div", { class: "token-facts", role: "status", "aria-live": "polite" });
    const strip = make("canvas", { class: "strip", height: "12", "aria-hidden": "true" });
    const panes = make("div", { class: "panes" });
    const summary = make("p", { class: "quiet" });
    const steps = make("div", { class: "pick" });
    let response, shown = [], at = 0;

    const dropped = (rule, i) => rule.reason[i] > 0;
    const fate = (rule, i) => !dropped(rule, i) ? "kept" :
      `${rule.soft && rule.soft[i] > 0 ? `kept to ${short(rule.soft[i])}` : "dropped"} by ${rule.tests[rule.reason[i] - 1]}`;
    const differs = (i) => shown.length > 1 && dropped(shown[0].rule, i) !== dropped(shown[1].rule, i);
    const values = (pane, name) => name === "ratio" ? response.ratio : name === "d" ? response.d : pane.rule[name];

    const tint = () => {
      for (const pane of shown) {
        const name = colour.value, found = name === "none" ? null : name === "kept" ? pane.rule.reason : values(pane, name);
        let least = 0, most = 0;
        for (const value of found ?? []) if (value < 65504) { least = Math.min(least, value); most = Math.max(most, value); }
        // A square-root scale: otherwise a few extreme tokens would hide the others.
        const level = (value) => Math.min(LEVELS, Math.round(LEVELS * Math.sqrt(Math.abs(value) / (Math.max(most, -least) || 1))));
        const styles = new Map();
        for (let i = 0; i < response.n; i++) {
          const value = found ? found[i] : 0, own = name === "kept" ? (value ? LEVELS : 0) : level(value);
          const signed = value < 0 ? -own : own;
          if (!styles.has(signed)) styles.set(signed, own ? `--tint:var(--${name === "kept" ? "mark" : value < 0 ? "cold" : "hot"});--much:${Math.round(62 * own / LEVELS)}%` : "");
          pane.spans[i].style.cssText = styles.get(signed);
        }
        pane.legend.textContent = !found ? "" : name === "kept" ? "" : `${colour.select.selectedOptions[0].textContent}: ${short(least)} to ${short(most)}`;
        if (name !== "none" && !found) pane.legend.textContent = `This rule has no ${colour.select.selectedOptions[0].textContent}`;
      }
    };
    const lay = (pane) => {
      const fragment = document.createDocumentFragment();
      pane.spans = new Array(response.n);
      for (let start = 0; start < response.n; start += CHUNK) {
        const chunk = make("div", { class: "chunk", "data-from": start + 1 });
        for (let i = start; i < Math.min(response.n, start + CHUNK); i++) {
          const span = document.createElement("span");
          span.textContent = response.raw.pieces[i];
          span.at = i;
          if (dropped(pane.rule, i)) span.className = "dropped";
          if (differs(i)) span.className += " differs";
          pane.spans[i] = span;
          chunk.append(span);
        }
        fragment.append(chunk);
      }
      pane.box.replaceChildren(fragment);
    };
    const drawStrip = () => {
      strip.width = Math.max(200, strip.clientWidth);
      const context = strip.getContext("2d"), style = getComputedStyle(root);
      context.clearRect(0, 0, strip.width, strip.height);
      shown.forEach((pane, row) => {
        context.fillStyle = style.getPropertyValue(row ? "--cold" : "--mark");
        const height = strip.height / shown.length, bins = Math.min(strip.width, response.n);
        for (let bin = 0; bin < bins; bin++) { // darker where more tokens are dropped
          const from = Math.floor(bin * response.n / bins), to = Math.floor((bin + 1) * response.n / bins);
          let count = 0;
          for (let i = from; i < to; i++) count += dropped(pane.rule, i);
          context.globalAlpha = Math.sqrt(count / (to - from));
          const x = Math.floor(bin * strip.width / bins);
          if (count) context.fillRect(x, row * height, Math.floor((bin + 1) * strip.width / bins) - x, height - 1);
        }
        context.globalAlpha = 1;
      });
      context.fillStyle = style.getPropertyValue("--ink");
      context.fillRect(Math.floor(at / response.n * strip.width), 0, 2, strip.height);
    };
    // `pane.top`: the position of the last scroll that was dealt with. Another one is the reader's, or the browser's.
    const moved = (pane) => pane.box.scrollTop !== pane.top;
    // A chunk off the screen has an estimated height, so a scroll may end elsewhere or at a false end. The chunks near the
    // chosen token are therefore laid out before it is scrolled to, which is repeated when others change their height,
    // until the reader scrolls.
    let held = false;
    const resized = new ResizeObserver(() => { if (held && !shown.some(moved)) reach(); });
    const layNear = (pane) => {
      const own = Math.floor(at / CHUNK);
      [...pane.box.children].forEach((chunk, number) => chunk.classList.toggle("near", Math.abs(number - own) <= NEAR));
    };
    const reach = () => {
      held = true;
      for (const pane of shown) {
        const box = pane.box.getBoundingClientRect(), own = pane.spans[at].getBoundingClientRect();
        if (own.top < box.top + 8 || own.bottom > box.bottom - 8) pane.box.scrollTop += own.top - box.top - box.height / 3;
        pane.top = pane.box.scrollTop;
      }
    };
    // The panes scroll together, by position within a chunk, since heights may be estimates.
    const follow = (from, to) => {
      const chunks = from.box.children, top = from.box.scrollTop;
      let low = 0, high = chunks.length - 1;
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (chunks[middle].offsetTop - from.box.offsetTop <= top) low = middle;
        else high = middle - 1;
      }
      const inside = top - (chunks[low].offsetTop - from.box.offsetTop);
      const wanted = to.box.children[low].offsetTop - to.box.offsetTop + inside;
      if (Math.abs(to.box.scrollTop - wanted) > 1) to.box.scrollTop = wanted;
      to.top = to.box.scrollTop;
    };
    const go = (i, scroll = true) => {
      if (i < 0 || i >= response.n) return;
      for (const pane of shown) {
        pane.spans[at]?.classList.remove("here");
        pane.spans[i].classList.add("here");
      }
      at = i;
      if (scroll) {
        shown.forEach(layNear);
        reach();
      }
      const entry = (name, value) => make("span", {}, make("b", {}, `${name} `), value);
      const own = (shown.find((pane) => pane.rule.w) ?? shown[0]).rule;
      facts.replaceChildren(entry(`token ${i + 1} of ${response.n}`, `‹${response.raw.pieces[i].replaceAll("\n", "⏎")}›`),
        entry("log μ", short(response.mu[i])), entry("log π − log μ", short(response.ratio[i])), entry("D", short(response.d[i])),
        ...(own.w ? [entry(`w (${own.name})`, short(own.w[i])), entry("prefix sum", short(own.s[i])), entry("limit c", short(own.c[i]))] : []),
        ...shown.map((pane) => make("span", dropped(pane.rule, i) ? { class: "dropped" } : {}, `${pane.rule.name}: ${fate(pane.rule, i)}`)));
      drawStrip();
    };
    const find = (way, wanted) => {
      for (let i = at + way; i >= 0 && i < response.n; i += way) if (wanted(i)) return go(i);
      return undefined;
    };
    const anyDropped = (i) => shown.some((pane) => dropped(pane.rule, i));
    const KEYS = { ArrowLeft: () => go(at - 1), ArrowRight: () => go(at + 1), Home: () => go(0), End: () => go(response.n - 1),
      n: () => find(1, anyDropped), p: () => find(-1, anyDropped), d: () => find(1, differs) };
    const build = () => {
      const rules = [response.rules[Number(first.value)], response.rules[Number(second.value)]].filter(Boolean);
      shown = rules.map((rule) => {
        const legend = make("span", { class: "quiet" });
        const box = make("div", { class: "tokens", tabindex: "0", role: "application", "aria-label":
          `Tokens under ${rule.name}. Arrow keys left and right go along; n and p to the next and previous dropped token; d to the next that the two rules differ in.` });
        const count = rule.reason.reduce((sum, reason) => sum + (reason > 0), 0);
        box.addEventListener("click", (event) => { if (event.target.at !== undefined) go(event.target.at, false); });
        box.addEventListener("keydown", (event) => {
          const act = event.ctrlKey || event.metaKey || event.altKey ? null : KEYS[event.key];
          if (act) { act(); event.preventDefault(); }
        });
        return { rule, legend, box, pane: make("div", { class: "pane" },
          make("p", {}, `${rule.name}${rule.own ? ", which trained the run" : ""}: ${count} of ${response.n} dropped (${percent(count / response.n)})`, legend), box) };
      });
      panes.classList.toggle("two", shown.length > 1);
      panes.replaceChildren(...shown.map((pane) => pane.pane));
      resized.disconnect();
      held = false;
      for (const pane of shown) {
        lay(pane);
        pane.top = 0;
        for (const box of [pane.box, ...pane.box.children]) resized.observe(box);
      }
      let lead = 0; // the pane that the reader scrolls; in the other the browser may move what it lays out
      shown.forEach((pane, number) => pane.box.addEventListener("scroll", () => {
        if (pane !== shown[number] || !moved(pane)) return;
        pane.top = pane.box.scrollTop;
        held = false;
        const other = shown[1 - number];
        if (!other || (lead !== number && moved(other))) return;
        lead = number;
        follow(pane, other);
      }, { passive: true }));
      tint();
      go(Math.min(at, response.n - 1), at > 0);
      nextDifference.hidden = shown.length < 2;
    };
    const button = (text, act) => {
      const found = make("button", { type: "button" }, text);
      found.addEventListener("click", act);
      steps.append(found);
      return found;
    };
    button("Previous dropped (p)", KEYS.p);
    button("Next dropped (n)", KEYS.n);
    const nextDifference = button("Next difference (d)", KEYS.d);
    strip.addEventListener("click", (event) => {
      const box = strip.getBoundingClientRect();
      go(Math.min(response.n - 1, Math.floor((event.clientX - box.left) / box.width * response.n)));
    });
    const open = () => {
      const number = Number(which.value);
      if (!opened.has(number)) opened.set(number, new Response(data.tokens[number]));
      response = opened.get(number);
      at = 0;
      const { raw } = response;
      summary.textContent = `Advantage ${raw.advantage}, reward ${raw.reward}; ` + (raw.length > response.n
        ? `the first ${response.n} of ${raw.length} tokens.` : `${raw.length} tokens.`) +
        " Probabilities are those at the beginning of the update. The strip shows where tokens are dropped.";
      const rules = response.rules.map((rule, i) => [i, rule.name]);
      const chosen = first.value, beside = second.value;
      first.fill(rules, chosen || 0);
      second.fill([["none", "no other rule"], ...rules], beside || "none");
      build();
    };
    section("Tokens", make("div", { class: "pick" }, which.box, first.box, second.box, colour.box), summary, steps, strip, facts, panes);
    // The initial choice: a response in which our rule drops tokens, preferably of a run trained with it.
    const drops = (raw, own) => raw.rules.findIndex((rule) => rule.name === data.ours && (!own || rule.own) && bytes(rule.reason).some(Boolean));
    const begin = [true, false].map((own) => data.tokens.findIndex((raw) => drops(raw, own) >= 0)).find((place) => place >= 0) ?? 0;
    which.fill(data.tokens.map((one, number) => [number, `${place(one)}, response ${one.draw + 1} (${one.length} tokens)`]), begin);
    colour.fill(COLOURS, "d");
    first.fill(data.tokens[begin].rules.map((rule, i) => [i, rule.name]), Math.max(0, drops(data.tokens[begin], false)));
    open();
    new ResizeObserver(drawStrip).observe(strip);
    new MutationObserver(drawStrip).observe(document.documentElement, { attributeFilter: ["data-scheme"] });
  };

  root.hidden = false;
  root.parentElement.classList.add("scripted");
  const again = data.maps.length ? drawMaps() : null;
  drawTexts();
  if (again) again(); // texts are available now
  drawGroups();
  drawTokens();
})();
