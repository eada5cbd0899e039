// Browsers refuse workers to pages that are opened from a disk; there the search runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inner = frame.contentWindow;
      this.inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const load = (source) => new Promise((done) => {
        const script = this.inner.document.createElement("script");
        script.src = new URL(source, url);
        script.onload = script.onerror = done;
        this.inner.document.body.append(script);
      });
      this.inner.importScripts = async (...sources) => { for (const source of sources) await load(source); };
      url = new URL(url, document.baseURI);
      this.ready = load(url);
    }
    postMessage(data) {
      this.ready.then(() => this.inner.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
