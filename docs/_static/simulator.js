// The simulator: a copy pipeline that can be changed, beside its recorded run. `predict` computes
// what docs/_ext/prediction.py computes, in the same order; a test compares the two.
"use strict";

const Simulator = (() => {
  const STAGES = [
    { key: "from_host_s", kind: "copy", lane: "copying to the GPU", streams: [0, 1, 1] },
    { key: "compute_s", kind: "compute", lane: "computing", streams: [0, 0, 0] },
    { key: "to_host_s", kind: "copy", lane: "copying to the host", streams: [0, 1, 2] },
  ];

  const UNITS = [
    [1, "s"],
    [1e3, "ms"],
    [1e6, "µs"],
  ];

  /** Chunk and stage in the order in which a program issues them. */
  function* issued(stages, { chunks, slots }) {
    const [first, ...others] = stages;
    for (let chunk = 0; chunk < Math.min(slots, chunks); chunk++) yield [chunk, first];
    for (let chunk = 0; chunk < chunks; chunk++) {
      for (const stage of others) yield [chunk, stage];
      if (chunk + slots < chunks) yield [chunk + slots, first];
    }
  }

  /** What runs when, how long it takes, the limit, and each stage's time in all; in seconds. */
  function predict(setting) {
    const stages = STAGES.filter(({ key }) => setting[key] > 0);
    const free = [0, 0, 0]; // when each stream has done all that was issued to it
    const ready = Array(setting.chunks).fill(0); // when each chunk has done its stages so far
    const spans = [];
    for (const [chunk, stage] of issued(stages, setting)) {
      const stream = stage.streams[setting.streams - 1];
      let start = Math.max(free[stream], ready[chunk]);
      if (stage === stages[0] && chunk >= setting.slots)
        start = Math.max(start, ready[chunk - setting.slots]); // whose slot it takes over
      free[stream] = ready[chunk] = start + setting[stage.key];
      spans.push({ name: `${stage.kind} ${chunk}`, stage, start, end: ready[chunk] });
    }
    const times = STAGES.map(({ key }) => setting[key]);
    const longest = Math.max(...times);
    const sum = times.reduce((all, time) => all + time);
    const makespan = Math.max(...ready);
    return {
      stages,
      spans,
      makespan,
      limit: sum + (setting.chunks - 1) * longest,
      longest: STAGES[times.indexOf(longest)],
      busy: (setting.chunks * longest) / makespan,
      // Of the shorter parts' time, by this schedule and at the limit.
      hidden: (setting.chunks * sum - makespan) / (setting.chunks * (sum - longest)),
      most: (setting.chunks - 1) / setting.chunks,
    };
  }

  /** Seconds with four figures, as the package writes them. */
  function inWords(exact) {
    if (exact === 0) return "0\u00a0s";
    const seconds = Number(exact.toPrecision(4)); // first, or 0.99996 s would be 1000.0 ms
    const [per, unit] = UNITS.find(([per]) => per * seconds >= 1) ?? UNITS.at(-1);
    const value = per * seconds;
    const whole = Math.floor(Math.log10(value));
    return `${value.toFixed(Math.min(3, Math.max(0, 3 - whole)))}\u00a0${unit}`;
  }

  return { UNITS, predict, inWords };
})();

if (typeof document !== "undefined") document.querySelectorAll(".autopar-simulator").forEach(start);

/** Bring one simulator to life: its form is there already, and the figure is what it opens on. */
function start(box) {
  const { predict, inWords } = Simulator;
  const runs = JSON.parse(box.querySelector("script").textContent);
  const form = box.querySelector("form");
  const field = form.elements;
  const part = (name) => box.querySelector(`[data-part=${name}]`);
  const picture = part("picture");

  function fill({ setting }) {
    field.chunks.value = setting.chunks;
    field.slots.value = setting.slots < setting.chunks ? setting.slots : "all";
    field.streams.value = setting.streams;
    for (const key of ["compute_s", "from_host_s", "to_host_s"])
      if (setting[key]) field[key].value = 1e3 * setting[key];
    field.ways.value = ["from_host_s", "to_host_s"].filter((key) => setting[key]).join(" ");
  }

  function read() {
    const chunks = Number(field.chunks.value);
    const seconds = (key) => (field[key].disabled ? 0 : field[key].valueAsNumber / 1e3);
    for (const key of ["from_host_s", "to_host_s"])
      field[key].disabled = !field.ways.value.split(" ").includes(key);
    return {
      chunks,
      compute_s: seconds("compute_s"),
      from_host_s: seconds("from_host_s"),
      to_host_s: seconds("to_host_s"),
      slots: field.slots.value === "all" ? chunks : Number(field.slots.value),
      streams: Number(field.streams.value),
    };
  }

  const same = (one, other) =>
    Object.keys(one).every((key) => Math.abs(one[key] - other[key]) <= 1e-6 * Math.abs(other[key]));

  let later = 0;
  function show() {
    const setting = read();
    const run = runs.find((each) => same(setting, each.setting));
    const found = predict(setting);
    field.run.value = run ? runs.indexOf(run) : "";
    for (const key of ["compute_s", "from_host_s", "to_host_s"]) {
      const words = field[key].disabled ? "none" : inWords(field[key].valueAsNumber / 1e3);
      field[key].setAttribute("aria-valuetext", words);
      field[key].nextElementSibling.textContent = words;
    }
    field.chunks.nextElementSibling.textContent = setting.chunks;
    const measured = run ? Math.max(...run.spans.map(([, , end]) => end)) : 0;
    part("makespan").textContent = inWords(found.makespan);
    part("limit").textContent = inWords(found.limit);
    part("ratio").textContent = `${(found.makespan / found.limit).toFixed(3)}\u00a0×`;
    part("measured").textContent = run ? inWords(measured) : "none";
    draw(setting, found, run);
    const words = said(found, measured);
    picture.querySelector("desc").textContent = words;
    // Not at every step of a slider: it is read aloud.
    clearTimeout(later);
    later = setTimeout(() => (part("words").textContent = words), 300);
    return words;
  }

  function said(found, measured) {
    const percent = (share) => `${(100 * share).toFixed(1)}\u00a0%`;
    const hidden = Number.isFinite(found.hidden)
      ? ` It saves ${percent(Math.max(0, found.hidden))} of the shorter parts' time; ` +
        `${percent(found.most)} is the most, as one chunk has nothing to hide behind.`
      : "";
    return (
      `Predicted: ${inWords(found.makespan)}, and the limit is ${inWords(found.limit)}.${hidden} ` +
      `The longest part is ${found.longest.lane}, ` +
      `which is busy for ${percent(found.busy)} of the time.` +
      (measured ? ` Measured: ${inWords(measured)}.` : "")
    );
  }

  /** Bars as the package draws them: lengths across in percent, lengths down in pixels. */
  function draw(setting, found, run) {
    const ends = run ? run.spans.map(([, , end]) => end) : [];
    const scale = Math.max(found.makespan, found.limit, ...ends);
    const across = (seconds) => `${((100 * seconds) / scale).toFixed(4)}%`;
    const id = "autopar-simulator";
    const bars = (lane, spans, look, y, height) =>
      `<g class="autopar-${look}" data-lane="${lane}">` +
      spans
        .map(
          ({ name, start, end }) =>
            `<rect x="${across(start)}" width="${across(end - start)}" ` +
            `y="${y}" height="${height}">` +
            `<title>${name}: ${inWords(end - start)}, from ${inWords(start)} to ${inWords(end)}` +
            "</title></rect>",
        )
        .join("") +
      "</g>";
    let [y, shapes, words] = [18, "", ""];
    for (const stage of found.stages) {
      y += 18;
      words += `<text y="${y - 5}">${stage.lane}</text>`;
      const height = stage.kind === "copy" ? 15 : 22;
      const own = found.spans.filter((span) => span.stage === stage);
      shapes += bars(`${stage.lane}, predicted`, own, stage.kind, y, height);
      y += height;
      if (run) {
        const seen = run.spans
          .filter(([key]) => key === stage.key)
          .map(([, start, end], i) => ({ name: `${stage.kind} ${i}`, start, end }));
        shapes += bars(`${stage.lane}, measured`, seen, "measured", y + 2, 8);
        y += 10;
      }
      y += 6;
    }
    const limit = across(found.limit);
    const near = found.limit > 0.8 * scale ? "end" : found.limit < 0.2 * scale ? "start" : "middle";
    picture.innerHTML =
      `<title id="${id}-title">The schedule${run ? ", and the recorded run" : ""}</title>` +
      `<desc id="${id}-desc"></desc><defs><pattern id="${id}-copy" width="5" height="5" ` +
      `patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="5" height="5"/>` +
      `<line y2="5"/></pattern></defs>${axis(scale, y, across)}<g>${shapes}</g>` +
      `<line class="autopar-limit" x1="${limit}" x2="${limit}" y1="16" y2="${y}"/>` +
      `<text x="${limit}" y="12" text-anchor="${near}">limit ${inWords(found.limit)}</text>` +
      `<g>${words}</g>`;
    picture.setAttribute("height", y + 20);
    part("legend").hidden = !run;
    picture.dispatchEvent(new Event("autopar-drawn", { bubbles: true }));
  }

  function axis(scale, y, across) {
    const power = 10 ** Math.floor(Math.log10(scale / 5));
    const fits = (size) => size * power >= (scale / 5) * (1 - 1e-9);
    const step = power * [1, 2, 2.5, 5, 10].find(fits);
    const [per, unit] = Simulator.UNITS.find(([per]) => per * scale >= 1);
    let ticks = "";
    for (let i = 0; i * step <= scale * (1 + 1e-9); i++) {
      const x = across(i * step);
      const anchor = i === 0 ? "start" : i * step > 0.93 * scale ? "end" : "middle";
      ticks +=
        `<line x1="${x}" x2="${x}" y1="18" y2="${y}"/><text x="${x}" y="${y + 13}" ` +
        `text-anchor="${anchor}">${Number((i * step * per).toPrecision(6))} ${unit}</text>`;
    }
    return `<g class="autopar-axis">${ticks}</g>`;
  }

  form.addEventListener("input", (event) => {
    if (event.target === field.run && field.run.value !== "") fill(runs[field.run.value]);
    show();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  fill(runs[0]);
  box.querySelectorAll("[data-live]").forEach((each) => (each.hidden = false));
  box.querySelector("[data-static]").hidden = true;
  part("words").textContent = show();
}
