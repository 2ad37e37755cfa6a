// The styles of the payment form, in the colours of the page around it. A strict policy allows sheets made by scripts.

const CSS = `
earmark-payment { display: block; max-width: 40rem; }
earmark-payment [hidden] { display: none !important; }
earmark-payment .payment-status:focus, earmark-payment .payment-alert:focus { outline: none; }
earmark-payment .payment-alert {
  margin: 0 0 1rem; padding: .75rem 1rem; border-radius: .5rem;
  background: var(--bad-soft, #fbe7e3); color: var(--bad, #a3261b);
}
earmark-payment .payment-status { margin: 0 0 1rem; }
earmark-payment .payment-alert:empty, earmark-payment .payment-status:empty { margin: 0; padding: 0; }
earmark-payment fieldset { border: 0; margin: 0 0 1rem; padding: 0; min-width: 0; }
earmark-payment legend { font-weight: 600; padding: 0; margin-bottom: .5rem; }
earmark-payment .payment-card {
  display: flex; gap: .75rem; align-items: center; min-height: 44px; padding: .5rem .75rem; margin-bottom: .375rem;
  border: 1px solid var(--line, #ddd6ca); border-radius: .5rem; background: var(--card, #fffdf9); cursor: pointer;
}
earmark-payment .payment-card:has(input:checked) { border-color: var(--accent, #0f6b5c); background: var(--accent-soft, #e2f1ec); }
earmark-payment .payment-card:has(input:focus-visible) { outline: 3px solid var(--accent, #0f6b5c); outline-offset: 2px; }
earmark-payment .payment-card input { width: 1.25rem; height: 1.25rem; flex: none; margin: 0; accent-color: var(--accent, #0f6b5c); }
earmark-payment .payment-does { display: block; font-weight: 400; color: var(--quiet, #655e6b); }
earmark-payment fieldset:disabled .payment-card { cursor: default; opacity: .6; }
earmark-payment .payment-more summary { min-height: 44px; padding: .625rem .75rem; box-sizing: border-box; cursor: pointer; color: var(--accent, #0f6b5c); }
earmark-payment .payment-more summary:focus-visible { outline: 3px solid var(--accent, #0f6b5c); outline-offset: 2px; }
earmark-payment .payment-hint, earmark-payment .payment-test { margin: 0 0 .75rem; color: var(--quiet, #655e6b); }
earmark-payment .payment-action { margin-bottom: 1.5rem; }
earmark-payment button {
  font: inherit; font-weight: 600; min-height: 44px; padding: .5rem 1.25rem; border: 0; border-radius: .5rem; cursor: pointer;
  background: var(--accent, #0f6b5c); color: var(--on-accent, #fff);
}
earmark-payment button:disabled { opacity: .6; cursor: default; }
earmark-payment button:focus-visible { outline: 3px solid var(--accent, #0f6b5c); outline-offset: 2px; }
`;

/** Adds the styles to the page, once. */
export function addStyles() {
  if (document.adoptedStyleSheets.some((sheet) => sheet.isOfEarmarkPayment)) return;
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(CSS);
  sheet.isOfEarmarkPayment = true;
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
}
