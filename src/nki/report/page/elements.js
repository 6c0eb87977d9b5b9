// What the pages share: elements, colours, counts, loop counters.

/** An element with properties, attributes (data-, aria-, role) and children. */
function element(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-") || name === "role") node.setAttribute(name, value);
    else node[name] = value;
  }
  node.append(...children.filter((child) => child !== null && child !== ""));
  return node;
}

function cssColor(name) {
  const text = getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  return [1, 3, 5].map((i) => parseInt(text.slice(i, i + 2), 16));
}

const cssText = ([r, g, b], alpha = 1) => `rgba(${r},${g},${b},${alpha})`;

function sizeText(bytes) {
  for (const unit of ["B", "KiB", "MiB"]) {
    if (bytes < 1024) return `${bytes >= 100 ? Math.round(bytes) : +bytes.toPrecision(3)} ${unit}`;
    bytes /= 1024;
  }
  return `${bytes.toFixed(2)} GiB`;
}

const countText = (n, noun) => `${n.toLocaleString("en-US")} ${noun}${n === 1 ? "" : "s"}`;

/** The loops around a bar and where they stood: `m=128 k=3`. */
function iterationText(data, row) {
  return data.loops[data.loop[row]].map((name, depth) => `${name}=${iterationValue(data, depth, row)}`).join(" ");
}

function iterationValue(data, depth, row) {
  const value = data.iterations[depth][row];
  return value < 0 ? data.loop_words[-1 - value] : value;
}

/** Shows a tooltip beside the pointer, inside the window. */
function showNear(tooltip, event) {
  tooltip.hidden = false;
  const { offsetWidth: width, offsetHeight: height } = tooltip;
  const right = event.clientX + 16 + width < innerWidth;
  const below = event.clientY + 18 + height < innerHeight;
  tooltip.style.left = `${Math.max(4, right ? event.clientX + 16 : event.clientX - width - 12)}px`;
  tooltip.style.top = `${Math.max(4, below ? event.clientY + 18 : event.clientY - height - 12)}px`;
}

/** Light or dark: by the system, the button, or a page around this one. `recolor` draws again. */
function followTheme(recolor) {
  const system = matchMedia("(prefers-color-scheme: dark)");
  system.addEventListener("change", recolor);
  const wear = (theme) => {
    document.documentElement.dataset.theme = theme;
    recolor();
  };
  document.getElementById("theme").onclick = () => {
    const preferred = system.matches ? "dark" : "light";
    wear((document.documentElement.dataset.theme ?? preferred) === "dark" ? "light" : "dark");
  };
  addEventListener("message", ({ data }) => ["light", "dark"].includes(data?.theme) && wear(data.theme));
}
