// How the search orders its hits: lessons and the glossary first, then appendices and exercises, then the pages to look
// up, and the reference last, unless an object has the name that is searched. Sphinx puts this in place of its own
// Scorer, so all of its constants are here.
var Scorer = {
  // A hit is [docname, title, anchor, descr, score, filename, kind]. A group's distance is more than any score in it.
  score: ([page, , anchor, , score]) => {
    const kinds = [/^(\d\d_|glossary$)/, /^(appendix|exercises)\//, /^(?!api\/)/];
    const place = kinds.findIndex((kind) => kind.test(page));
    const group = place >= 0 ? kinds.length - place : score > Scorer.objNameMatch / 2 ? kinds.length : 0;
    return 10000 * group + score + (anchor ? 1 : 0); // an entry of the glossary comes before its page
  },
  objNameMatch: 1000, // the query is the name of an object, or its last part
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
