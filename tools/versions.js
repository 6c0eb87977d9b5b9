// The menu of versions in the head of a page. VERSIONS: names and places, relative to this script.
(() => {
  const site = document.currentScript.src;
  const address = (place) => new URL(`${place}index.html`, site).href;
  const here = VERSIONS.find(([, place]) => address(place) === new URL("index.html", site).href)?.[0] ?? "";
  const make = (tag, className, properties, ...children) => {
    const made = Object.assign(document.createElement(tag), { className, ...properties });
    made.append(...children);
    return made;
  };
  document.addEventListener("DOMContentLoaded", () => {
    const links = VERSIONS.map(([name, place]) =>
      make("li", "md-version__item", {}, make("a", "md-version__link", { href: address(place) }, name)));
    const current = make("button", "md-version__current", { type: "button", ariaLabel: `Version ${here}: choose another` }, here);
    const menu = make("div", "md-version", {}, current, make("ul", "md-version__list", {}, ...links));
    document.querySelector(".md-header__topic")?.append(menu);
  });
})();
