// Browsers refuse a worker to a page that is opened from the disk: there, the site's search runs in
// a hidden frame instead. MkDocs' offline plugin loads no shim from elsewhere if one has this name.

if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.documentElement.append(frame);
      const inside = frame.contentWindow;
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.ready = new Promise((resolve, reject) => {
        const script = inside.document.createElement("script");
        script.src = new URL(address, location);
        script.onload = () => resolve(inside);
        script.onerror = () => reject(new Error(`${script.src} cannot be read`));
        inside.document.head.append(script);
      });
    }

    postMessage(data) {
      this.ready.then((inside) => inside.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
