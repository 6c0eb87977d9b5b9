// What a reader cannot see on the page as it is now: text beyond the window, cut code, unreadable contrast.
(wide) => {
  const found = new Set();
  const label = (element) => {
    const classes = [...element.classList].map((name) => "." + name).join("");
    return `${element.tagName.toLowerCase()}${classes} "${element.textContent.trim().slice(0, 30)}"`;
  };
  if (document.documentElement.scrollWidth > innerWidth) {
    found.add(`the page is ${document.documentElement.scrollWidth} px wide`);
  }
  if (wide) {
    for (const code of document.querySelectorAll("pre > code")) {
      if (code.scrollWidth > code.clientWidth) found.add(`code is cut: ${label(code)}`);
    }
  }
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const known = new Map();
  const rgba = (text) => {
    if (!known.has(text)) {
      canvas.clearRect(0, 0, 1, 1);
      canvas.fillStyle = text;
      canvas.fillRect(0, 0, 1, 1);
      const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
      known.set(text, [r, g, b, a / 255]);
    }
    return known.get(text);
  };
  const over = (top, bottom, opacity) => {
    const share = top[3] * opacity;
    return [0, 1, 2].map((i) => top[i] * share + bottom[i] * (1 - share));
  };
  const backgrounds = new Map();
  const background = (element) => {
    if (!element) return [255, 255, 255];
    if (!backgrounds.has(element)) {
      const own = rgba(getComputedStyle(element).backgroundColor);
      backgrounds.set(element, own[3] === 1 ? own.slice(0, 3) : over(own, background(element.parentElement), 1));
    }
    return backgrounds.get(element);
  };
  const linear = (value) => (value /= 255) <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const luminance = (c) => 0.2126 * linear(c[0]) + 0.7152 * linear(c[1]) + 0.0722 * linear(c[2]);
  const opacity = (element) => element ? getComputedStyle(element).opacity * opacity(element.parentElement) : 1;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const seen = new Set();
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || seen.has(element)) continue;
    seen.add(element);
    if (!element.checkVisibility({ visibilityProperty: true, opacityProperty: true })) continue;
    const style = getComputedStyle(element);
    const picture = element.closest("svg"), drawn = picture ? style.fill : style.color;
    const behind = background(element), share = opacity(element) * (picture ? style.fillOpacity : 1);
    if (share === 0) continue;
    const [high, low] = [over(rgba(drawn), behind, share), behind].map(luminance).sort((a, b) => b - a);
    const ratio = (high + 0.05) / (low + 0.05);
    const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    if (ratio < (large ? 3 : 4.5)) found.add(`contrast ${ratio.toFixed(2)}: ${label(element)}`);
  }
  return [...found];
};
