// Timelines to look into. Each drawing is one tab stop: arrow keys go from bar to bar, + and - zoom
// and 0 shows all again. A line under it says what the pointer or the keyboard is on. Without this
// script the drawing, its words and its tables are there all the same.
"use strict";

{
  const MOST = 64; // times as wide
  const BAR = "g[data-lane] > rect";
  const HINT = "Arrow keys go from bar to bar; + and \u2212 zoom, 0 shows all.";
  const ZOOMS = [
    ["+", "Zoom in", 2],
    ["\u2212", "Zoom out", 0.5],
    ["\u2194", "Show all", 0],
  ];
  const DIVISORS = [50, 20, 10, 5, 2, 1]; // of a step between two times of the axis

  const rows = (svg) => [...svg.querySelectorAll("g[data-lane]")];
  const bars = (row) => [...row.querySelectorAll(":scope > rect")];
  const share = (bar, name) => parseFloat(bar.getAttribute(name)) / 100;
  const middle = (bar) => share(bar, "x") + share(bar, "width") / 2;
  /** Lane, times and name of a bar: names of kernels are long, so they come last. */
  function said(bar) {
    const [, name, times] = bar.querySelector("title").textContent.match(/^(.*): (.*)$/s);
    return `${bar.parentNode.dataset.lane} \u00b7 ${times} \u00b7 ${name}`;
  }

  /** Let a drawing be looked into; one that was drawn anew stays as it was zoomed. */
  function enhance(svg) {
    if (!rows(svg).length) return;
    svg.setAttribute("role", "listbox"); // an image has no parts to go to
    svg.setAttribute("aria-orientation", "horizontal");
    const [title, ...others] = svg.getAttribute("aria-labelledby").split(" ");
    svg.setAttribute("aria-labelledby", title);
    if (others.length) svg.setAttribute("aria-describedby", others.join(" "));
    for (const each of svg.querySelectorAll("text, line, svg"))
      each.setAttribute("aria-hidden", "true");
    for (const row of rows(svg)) {
      row.setAttribute("role", "group");
      row.setAttribute("aria-label", row.dataset.lane);
      for (const bar of bars(row)) {
        bar.setAttribute("role", "option");
        bar.setAttribute("tabindex", "-1");
      }
    }
    bars(rows(svg)[0])[0].setAttribute("tabindex", "0");
    if (!svg.closest(".autopar-zoom")) frame(svg);
    else ticks(svg);
  }

  /** Put a drawing into a box that it can be wider than, with its tools and words beneath. */
  function frame(svg) {
    const box = document.createElement("div");
    box.className = "autopar-zoom";
    svg.before(box);
    box.append(svg);
    const tools = document.createElement("div");
    tools.className = "autopar-tools";
    tools.dataset.live = "";
    box.after(tools);
    const words = document.createElement("span");
    for (const [sign, label, factor] of ZOOMS) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = sign;
      button.setAttribute("aria-label", label);
      button.title = label;
      button.tabIndex = -1; // the keyboard has + - 0
      button.addEventListener("click", () => zoom(svg, factor));
      tools.append(button);
    }
    tools.append(words);

    const tell = (bar) => {
      const on = bar ?? svg.querySelector("rect:focus");
      words.textContent = on ? said(on) : "";
    };
    svg.addEventListener("pointerover", ({ target }) => tell(target.closest(BAR)));
    svg.addEventListener("pointerleave", () => tell(null));
    // On the box: a drawing that hears of focus gets it, in Chromium.
    box.addEventListener("focusin", (event) => {
      if (!event.target.matches(BAR)) return;
      svg.querySelectorAll("[tabindex='0']").forEach((each) => each.setAttribute("tabindex", "-1"));
      event.target.setAttribute("tabindex", "0");
      const first = event.target.matches(":focus-visible") && !svg.contains(event.relatedTarget);
      words.textContent = said(event.target) + (first ? ` \u00b7 ${HINT}` : "");
    });
    box.addEventListener("focusout", () => (words.textContent = ""));
    svg.addEventListener("keydown", (event) => press(svg, event));
    box.addEventListener("scroll", () =>
      svg.style.setProperty("--scrolled", `${box.scrollLeft}px`),
    );
  }

  function press(svg, event) {
    const bar = event.target.closest(BAR);
    if (!bar || event.ctrlKey || event.altKey || event.metaKey) return;
    const row = bars(bar.parentNode);
    const place = row.indexOf(bar);
    const beside = (step) => {
      const other = rows(svg)[rows(svg).indexOf(bar.parentNode) + step];
      const far = (each) => Math.abs(middle(each) - middle(bar));
      return other && bars(other).reduce((best, each) => (far(each) < far(best) ? each : best));
    };
    const to = {
      ArrowRight: () => row[place + 1],
      ArrowLeft: () => row[place - 1],
      ArrowDown: () => beside(1),
      ArrowUp: () => beside(-1),
      Home: () => row[0],
      End: () => row.at(-1),
    }[event.key];
    const factor = { "+": 2, "=": 2, "-": 0.5, 0: 0 }[event.key];
    if (!to && factor === undefined) return;
    event.preventDefault();
    event.stopPropagation(); // the theme would turn pages
    if (to) to()?.focus();
    else zoom(svg, factor);
  }

  /** Make a drawing wider or narrower, about the bar in focus or else the middle; 0 shows all. */
  function zoom(svg, factor) {
    const box = svg.parentNode;
    const at = svg.querySelector("rect:focus");
    const focus = at ? middle(at) : (box.scrollLeft + box.clientWidth / 2) / box.scrollWidth;
    svg.zoom = factor ? Math.min(MOST, Math.max(1, (svg.zoom ?? 1) * factor)) : 1;
    svg.style.width = `${100 * svg.zoom}%`;
    ticks(svg);
    box.scrollLeft = focus * box.scrollWidth - box.clientWidth / 2;
  }

  /** Give the axis of a zoomed drawing more times, between those that it has. */
  function ticks(svg) {
    svg.querySelectorAll("[data-tick]").forEach((each) => each.remove());
    const [, line] = svg.querySelectorAll(".autopar-axis line");
    const [, text] = svg.querySelectorAll(".autopar-axis text");
    const parts = DIVISORS.find((divisor) => divisor <= (svg.zoom ?? 1));
    if (!line || parts === 1) return;
    const [value, unit] = text.textContent.split(" ");
    const step = parseFloat(line.getAttribute("x1")) / parts;
    for (let i = 1; i * step <= 100; i++) {
      if (i % parts === 0) continue;
      const [mark, words] = [line.cloneNode(), text.cloneNode()];
      for (const name of ["x1", "x2"]) mark.setAttribute(name, `${i * step}%`);
      words.setAttribute("x", `${i * step}%`);
      words.setAttribute("text-anchor", "middle");
      words.textContent = `${Number(((i * value) / parts).toPrecision(6))} ${unit}`;
      for (const each of [mark, words]) each.setAttribute("data-tick", "");
      line.parentNode.append(mark, words);
    }
  }

  document.querySelectorAll(".autopar-figure svg").forEach(enhance);
  document.addEventListener("autopar-drawn", ({ target }) => enhance(target));
}
