// Reports of the command: their prose may break anywhere, and what stands in columns scrolls by itself.
document.querySelectorAll(".highlight-myst-ansi pre, .sphx-glr-script-out pre").forEach((pre) => {
  const parts = [];
  for (const line of pre.textContent.trimEnd().split("\n")) {
    const prose = !/\S {2,}\S|^ {2,}|^# /.test(line);
    if (parts.at(-1)?.prose === prose) parts.at(-1).lines.push(line);
    else parts.push({ prose, lines: [line] });
  }
  const boxes = parts.map(({ prose, lines }) => {
    const box = document.createElement("span");
    box.className = prose ? "autopar-prose" : "autopar-columns";
    box.textContent = lines.join("\n");
    return box;
  });
  pre.replaceChildren(...boxes);
});

// Page 404 may find the home page of a folder first: from there on the way home is known.
const CONTENT_ROOT = document.documentElement.dataset.content_root;
if (location.hash === "#home" && CONTENT_ROOT !== "./") location.replace(`${CONTENT_ROOT}index.html`);

// Boxes that scroll sideways can be reached with the keyboard, so that all of them can be read.
const BOXES =
  "pre, .autopar-columns, .autopar-table-box, .table-wrapper, .autopar-scroll, .output_html, .autopar-figure";
const reach = () =>
  document.querySelectorAll(BOXES).forEach((box) => {
    const wide = box.scrollWidth > box.clientWidth;
    box.toggleAttribute("data-wide", wide); // which a telephone says in words
    if (wide) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  });
reach();
addEventListener("resize", reach);
document.addEventListener("toggle", reach, true); // an opened <details> shows new boxes

// Menu and contents open by keyboard, and take no focus while they are closed: the theme has labels
// to click on, and only moves its drawers out of sight.
document.querySelectorAll("label:is(.nav-overlay-icon, .toc-overlay-icon)").forEach((label) => {
  const [button, toggle] = [document.createElement("button"), document.getElementById(label.htmlFor)];
  button.className = label.className;
  button.ariaLabel = toggle.ariaLabel;
  button.append(...label.childNodes);
  button.addEventListener("click", () => toggle.click());
  label.replaceWith(button);
});
for (const [box, drawer] of [["__navigation", ".sidebar-drawer"], ["__toc", ".toc-drawer"]]) {
  const [toggle, side] = [document.getElementById(box), document.querySelector(drawer)];
  const close = () => (side.inert = !toggle.checked && getComputedStyle(side).position === "fixed");
  if (!toggle || !side) continue;
  close();
  toggle.addEventListener("change", close);
  addEventListener("resize", close);
}

// What the search has found is marked in the text, and not in drawings or data.
document
  .querySelectorAll("svg *, script")
  .forEach((each) => each.classList.add("nohighlight"));

// For those who hear the page: names that the theme leaves out, and roles that don't fit.
document.querySelectorAll(".caption[role=heading]").forEach((each) => (each.ariaLevel = "2"));
document.querySelectorAll(".citation-list, .citation").forEach((each) => each.removeAttribute("role"));
document.querySelector(".sidebar-drawer")?.setAttribute("aria-label", "Site");
document.querySelector(".toc-drawer")?.setAttribute("aria-label", "This page");

// The menu shows the page that it is on: the current entry scrolls into view, and nothing else moves.
const menu = document.querySelector(".sidebar-scroll");
const entry = menu?.querySelector("li.current-page");
if (entry) {
  const below = entry.getBoundingClientRect().bottom - menu.getBoundingClientRect().bottom;
  if (below > 0) menu.scrollTop += below + menu.clientHeight / 2;
}
