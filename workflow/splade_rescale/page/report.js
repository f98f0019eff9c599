"use strict";

if (window !== window.parent) document.body.classList.add("embedded");

// Sort by a column: numbers as numbers, what is empty after all others in either direction.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, place) => head.querySelector("button").addEventListener("click", () => {
    const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    const isNumber = head.classList.contains("n");
    const value = (row) => row.cells[place].dataset.value;
    const number = (text) => Number(text.replace("inf", "Infinity"));
    const compare = (a, b) => isNumber ? number(a) - number(b) : a.localeCompare(b);
    const rows = [...table.tBodies[0].rows].sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      if (x === "" || y === "") return (x === "") - (y === "");
      return x === y ? 0 : sign * compare(x, y);
    });
    table.tBodies[0].append(...rows);
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", sign === 1 ? "ascending" : "descending");
  }));
}

// The expansions of one text by one backbone.
{
  const data = JSON.parse(document.getElementById("expansions-data").textContent);
  const [backbone, text] = ["backbone", "text"].map((name) => document.getElementById(`viewer-${name}`));
  const make = (tag, content, name) => {
    const element = document.createElement(tag);
    element.textContent = content;
    if (name) element.className = name;
    return element;
  };
  const list = (title, expansion, best, top) => {
    const box = make("div", "", best ? "terms is-best" : "terms");
    const terms = make("ol", "");
    for (const [term, weight, own] of expansion.terms) {
      const item = make("li", "");
      const bar = make("div", "", "bar");
      bar.style.width = `${100 * weight / top}%`;
      item.append(bar, make(own ? "b" : "span", term), make("i", weight.toFixed(2)));
      terms.append(item);
    }
    const left = expansion.active - expansion.terms.length;
    const count = expansion.active === 1 ? "1 active term" : `${expansion.active} active terms`;
    box.append(make("h3", title), make("p", left > 0 ? `${count}, the top ${expansion.terms.length}` : count), terms);
    return box;
  };
  const show = () => {
    const place = Number(text.value);
    document.getElementById("viewer-source").textContent = data.texts[place].text;
    const scales = data.backbones[Number(backbone.value)].scales;
    document.getElementById("viewer-lists").replaceChildren(...scales.flatMap((scale) =>
      ["before", "after"].map((when) => {
        const expansion = scale[when][place];
        const title = `k = ${scale.k}, ${when} training`;
        const top = Math.max(...expansion.terms.map((term) => term[1]), 1e-9);
        return list(scale.best && when === "after" ? `${title} ★ best k` : title, expansion, scale.best && when === "after", top);
      })));
  };
  const option = (label, value) => Object.assign(make("option", label), { value });
  backbone.append(...data.backbones.map((entry, place) => option(entry.backbone, place)));
  const short = (entry) => entry.text.length > 60 ? `${entry.text.slice(0, 60)}…` : entry.text;
  text.append(...data.texts.map((entry, place) => option(`${entry.kind}: ${short(entry)}`, place)));
  for (const select of [backbone, text]) select.addEventListener("change", show);
  document.getElementById("viewer").hidden = false;
  show();
}
