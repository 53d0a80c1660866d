// A document that is just large enough for the script of a report: a tree of elements with tag names,
// classes, ids, attributes and listeners. Selectors may name tags, one class or one id, and parents.
"use strict";

class Stub {
  constructor(tag, { id = "", classes = [], data = {}, text = "" } = {}, children = []) {
    Object.assign(this, { tag, id, dataset: data, listeners: {}, attributes: {}, style: {} });
    this.own = text;
    this.parent = null;
    this.children = [];
    this.names = new Set(classes);
    this.open = false;
    children.forEach((child) => this.appendChild(child));
  }
  get textContent() { return this.own + this.children.map((child) => child.textContent).join(""); }
  set textContent(text) { this.own = text; this.children = []; }
  appendChild(child) {
    if (child.parent) child.remove();
    child.parent = this;
    this.children.push(child);
  }
  remove() {
    this.parent.children = this.parent.children.filter((other) => other !== this);
    this.parent = null;
  }
  setAttribute(name, value) { this.attributes[name] = value; }
  getAttribute(name) { return this.attributes[name] ?? null; }
  removeAttribute(name) { delete this.attributes[name]; }
  addEventListener(kind, action) { (this.listeners[kind] ??= []).push(action); }
  fire(kind, event = {}) {
    (this.listeners[kind] || []).forEach((action) => action({ preventDefault() {}, ...event }));
  }
  matches(part) {
    const [, tag, mark, name] = part.match(/^([a-z]*)([.#]?)(.*)$/);
    if (tag && tag !== this.tag) return false;
    return !mark || (mark === "." ? this.names.has(name) : this.id === name);
  }
  querySelectorAll(selector) {
    const parts = selector.split(" ");
    const all = this.children.flatMap((child) => [child, ...child.querySelectorAll("")]);
    if (selector === "") return all;
    return all.filter((element) => {
      if (!element.matches(parts[parts.length - 1])) return false;
      let rest = parts.slice(0, -1);
      for (let above = element.parent; above && rest.length; above = above.parent) {
        if (above.matches(rest[rest.length - 1])) rest = rest.slice(0, -1);
      }
      return rest.length === 0;
    });
  }
  querySelector(selector) { return this.querySelectorAll(selector)[0] ?? null; }
  getElementById(id) { return this.querySelector(`#${id}`); }
  createElement(tag) { return new Stub(tag); }
}

// Returns a document with a table. `kinds` are those of its columns, `rows` the data-values.
function tableDocument(kinds, rows) {
  const heads = kinds.map((kind, i) => new Stub("th", { data: { kind }, text: `column ${i}` }));
  const body = rows.map((row) => new Stub("tr", {}, row.map((value) => (
    new Stub("td", { data: value === null ? {} : { value }, text: value ?? "" })))));
  const table = new Stub("table", { classes: ["sortable"] }, [
    new Stub("thead", {}, [new Stub("tr", {}, heads)]), new Stub("tbody", {}, body)]);
  return new Stub("html", {}, [table, new Stub("details")]);
}
