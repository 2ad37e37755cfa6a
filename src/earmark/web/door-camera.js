// Reads QR codes with the camera, where the browser can (BarcodeDetector, over HTTPS).

const LOOK_MS = 200;
const SAME_CODE_MS = 4_000; // a code that stays before the camera is one scan

/** Why the camera cannot be used here, as the name of a text; null where it can. */
export async function whyNoCamera() {
  if (!globalThis.isSecureContext) return "cameraInsecure";
  if (!("BarcodeDetector" in globalThis) || !navigator.mediaDevices?.getUserMedia) return "cameraMissing";
  const formats = await BarcodeDetector.getSupportedFormats().catch(() => []);
  return formats.includes("qr_code") ? null : "cameraMissing";
}

/** Starts the camera and calls `found` with each new code. Returns a function that stops it. */
export async function startCamera(video, found) {
  const stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
  const detector = new BarcodeDetector({ formats: ["qr_code"] });
  let last = { code: null, at: 0 };
  let busy = false;
  video.srcObject = stream;
  await video.play();
  const timer = setInterval(async () => {
    if (busy) return;
    busy = true;
    const [seen] = await detector.detect(video).catch(() => []);
    const now = performance.now();
    if (seen) {
      const isNew = seen.rawValue !== last.code || now - last.at > SAME_CODE_MS;
      last = { code: seen.rawValue, at: now };
      if (isNew) await found(seen.rawValue);
    }
    busy = false;
  }, LOOK_MS);
  return () => {
    clearInterval(timer);
    for (const track of stream.getTracks()) track.stop();
    video.srcObject = null;
  };
}
