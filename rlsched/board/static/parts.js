// Elements of the panels.

export function make(tag, about = {}, ...children) {
  const one = document.createElement(tag);
  for (const [name, value] of Object.entries(about)) {
    if (name === "data") Object.assign(one.dataset, value); else one[name] = value;
  }
  one.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return one;
}

export const jobLink = (job, start) => make("button", {className: "link", data: {job, ...(start === undefined || start === null ? {} : {start})}}, `job ${job}`);
export const decisionLink = (row, text) => make("button", {className: "link", data: {row}}, text);
export const fact = (name, value) => value === "" || value === null || value === undefined ? null : make("div", {}, make("dt", {}, name), make("dd", {}, value));
export const number = (value, digits = 2) => value === null || value === undefined ? "" : value.toFixed(digits);

export function table(heads, rows, caption) {
  return make("div", {className: "table"}, make("table", {},
    caption ? make("caption", {}, caption) : null,
    make("thead", {}, make("tr", {}, ...heads.map((head) => make("th", {scope: "col"}, head)))),
    make("tbody", {}, ...rows.map((row) => make("tr", {className: row.mark || ""}, ...row.cells.map((cell) => make("td", {}, cell)))))));
}
