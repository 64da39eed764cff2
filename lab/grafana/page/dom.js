// Elements without a framework. Texts go in as texts: nothing that comes from data is ever read as HTML.

/** element("div.legend", {title}, child, "text", [more]); a property that starts with `on` is a listener, `style` an object. */
export function element(tag, properties = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  const made = document.createElement(name || "div");
  return filled(made, classes, properties, children);
}

export function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) if (value !== undefined) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function filled(made, classes, properties, children) {
  made.classList.add(...classes);
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === null) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "style") for (const [property, one] of Object.entries(value)) one !== undefined && made.style.setProperty(property, one);
    else if (key in made && key !== "list") made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

/** An address that may stand in a link: http, https or a path of this server. */
export function safeUrl(text) {
  const url = new URL(text, location.href);
  return ["http:", "https:"].includes(url.protocol) ? url.href : "";
}
