// Python text in colours.

const TOKENS = /("""[\s\S]*?"""|'''[\s\S]*?'''|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|(#[^\n]*)|\b(and|as|assert|break|class|continue|def|del|elif|else|except|False|finally|for|from|global|if|import|in|is|lambda|None|not|or|pass|raise|return|True|try|while|with|yield)\b|\b(\d[\w.]*)\b|(@[\w.]+)/g;
const TOKEN_CLASSES = ["", "string", "comment", "keyword", "number", "decorator"];

/** The lines of a Python text, each a list of nodes. */
function highlighted(text) {
  const lines = [[]];
  const add = (piece, className) => {
    piece.split("\n").forEach((part, i) => {
      if (i) lines.push([]);
      if (part) lines.at(-1).push(className ? element("span", { className, textContent: part }) : part);
    });
  };
  let last = 0;
  for (const match of text.matchAll(TOKENS)) {
    add(text.slice(last, match.index));
    add(match[0], TOKEN_CLASSES[match.findIndex((group, i) => i && group !== undefined)]);
    last = match.index + match[0].length;
  }
  add(text.slice(last));
  return lines;
}
