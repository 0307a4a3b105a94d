// The order of what the search finds: a term's entry, then pages to begin with, then the rest.
// A hit in the glossary is titled by its term; the whole glossary comes last.
const termOf = (anchor) => {
  const isHere = ([, places]) => places.some(([, id]) => `#${id}` === anchor);
  const [name] = Object.entries(Search._index.indexentries).find(isHere);
  const written = anchor.replace("#term-", "").replaceAll("-", " "); // in its own capitals
  return `${written.toLowerCase() === name ? written : name} (glossary)`;
};
var Scorer = {
  score: (hit) => {
    const [page, , anchor, , score, , kind] = hit;
    if (page === "glossary" && kind === "index") {
      hit[1] = termOf(anchor);
      return score + 100;
    }
    if (page === "glossary" && kind === "text") return score - 100;
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
