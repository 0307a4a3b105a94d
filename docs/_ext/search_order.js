// The order of what the search finds: a term's entry, then pages to begin with, then the rest.
var Scorer = {
  score: ([page, , , , score, , kind]) => {
    if (page === "glossary" && kind === "index") return score + 100;
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
