"use strict";
document.getElementById("theme").onclick = () => {
  const preferred = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  const theme = (document.documentElement.dataset.theme ?? preferred) === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  for (const frame of document.querySelectorAll("iframe")) frame.contentWindow.postMessage({ theme }, "*");
};
