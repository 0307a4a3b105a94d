// Boxes that scroll sideways can be reached with the keyboard, so that all of them can be read.
const BOXES = "pre, .table-wrapper, .autopar-scroll, .output_html, .autopar-figure";
const reach = () =>
  document.querySelectorAll(BOXES).forEach((box) => {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  });
reach();
addEventListener("resize", reach);
document.addEventListener("toggle", reach, true); // an opened <details> shows new boxes

// For those who hear the page: names that the theme leaves out, and roles that don't fit.
document.querySelectorAll(".caption[role=heading]").forEach((each) => (each.ariaLevel = "2"));
document.querySelectorAll(".citation-list, .citation").forEach((each) => each.removeAttribute("role"));
document.querySelector(".sidebar-drawer")?.setAttribute("aria-label", "Site");
document.querySelector(".toc-drawer")?.setAttribute("aria-label", "This page");
