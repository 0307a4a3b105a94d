// The order of what the search finds: a term's entry, then pages to begin with, then the rest.
// A hit in the glossary is titled by its term; the whole glossary comes last.
const termOf = (anchor) => {
  const isHere = ([, places]) => places.some(([, id]) => `#${id}` === anchor);
  const [name] = Object.entries(Search._index.indexentries).find(isHere);
  const written = anchor.replace("#term-", "").replaceAll("-", " "); // in its own capitals
  return `${written.toLowerCase() === name ? written : name} (glossary)`;
};
// What readers ask for, and the page that is about it, whichever words its title has.
const ABOUT = {
  dataloader: "auto_gallery/copies/plot_4_feed_a_training_loop",
  "data loader": "auto_gallery/copies/plot_4_feed_a_training_loop",
  nsight: "auto_gallery/tools/plot_1_verify_with_nsight",
  "race condition": "auto_gallery/copies/plot_2_five_wrong_answers",
};
const about = ABOUT[new URLSearchParams(location.search).get("q")?.trim().toLowerCase()];
var Scorer = {
  score: (hit) => {
    const [page, , anchor, , score, , kind] = hit;
    if (page === "glossary" && kind === "index") {
      hit[1] = termOf(anchor);
      return score + 100;
    }
    if (page === "glossary" && kind === "text") return score - 100;
    if (page === about) return score + 50;
    return /^(index|install|five_minutes|recipes|chapter\/|howto\/)/.test(page) ? score + 10 : score;
  },
  // As Sphinx has them.
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
// An anchor may mark a place without words: then Sphinx has no summary, and fails to show it.
addEventListener("DOMContentLoaded", () => {
  const summary = Search.makeSearchSummary;
  Search.makeSearchSummary = (page, words, anchor) =>
    summary(page, words, anchor) ?? summary(page, words);
});
