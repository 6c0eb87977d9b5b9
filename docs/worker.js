// Pages opened from a folder may start no Worker, so the theme's search would hide: run it in a frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.body.appendChild(document.createElement("iframe"));
      frame.hidden = true;
      const inner = (this.inner = frame.contentWindow);
      const load = (address) =>
        new Promise((done) => {
          const script = inner.document.createElement("script");
          script.src = address;
          script.onload = done;
          inner.document.body.append(script);
        });
      inner.importScripts = (...addresses) => Promise.all(addresses.map(load));
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.ready = load(url);
    }
    postMessage(data) {
      this.ready.then(() => this.inner.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {}
  };
}
