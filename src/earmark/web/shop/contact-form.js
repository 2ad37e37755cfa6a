// Whom the tickets are for: checked here in words a buyer understands, and kept by the server.

import { byId } from "../dom.js";
import { language, texts } from "./language.js";
import { notifyError } from "./page-frame.js";

const EMAIL = /^[^\s@]+@[^\s@]+\.[^\s@]+$/;

export class ContactForm {
  /** save({name, email, language}) keeps it. */
  constructor({ save }) {
    this.save = save;
    this.node = byId("details");
    this.node.addEventListener("submit", (event) => this.#submit(event));
    for (const input of this.#inputs) input.addEventListener("input", () => this.#mark(input, ""));
  }

  get #inputs() {
    return [byId("details-name"), byId("details-email")];
  }

  fill(contact) {
    if (!contact) return;
    byId("details-name").value = contact.name;
    byId("details-email").value = contact.email;
  }

  async #submit(event) {
    event.preventDefault();
    if (this.node.getAttribute("aria-busy") === "true") return;
    const [name, email] = this.#inputs.map(({ value }) => value.trim());
    this.#mark(byId("details-name"), name ? "" : texts.nameMissing);
    this.#mark(byId("details-email"), wrongEmail(email));
    const wrong = this.#inputs.find((input) => input.getAttribute("aria-invalid") === "true");
    if (wrong) return wrong.focus();
    this.node.setAttribute("aria-busy", "true");
    await this.save({ name, email, language }).catch((error) => this.#refused(error));
    this.node.setAttribute("aria-busy", "false");
  }

  #refused(error) {
    const field = error.facts?.errors?.[0]?.path;
    if (field === "email") {
      this.#mark(byId("details-email"), texts.emailWrong);
      byId("details-email").focus();
    } else notifyError(error);
  }

  #mark(input, words) {
    input.setAttribute("aria-invalid", words !== "");
    byId(`${input.id}-wrong`).textContent = words;
  }
}

function wrongEmail(email) {
  if (!email) return texts.emailMissing;
  return EMAIL.test(email) ? "" : texts.emailWrong;
}
