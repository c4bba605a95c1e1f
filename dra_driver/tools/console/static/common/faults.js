// Errors of questions, for the user.

import { h } from "./dom.js";

// Returns whether the fleet is still being read. The page asks again as soon as it is: a change is reported then.
export const isLoading = (error) => error.code === "loading";

export const textOf = (error) => `${error.message}${error.hint ? ` (${error.hint})` : ""}`;

const mustSignIn = (error) => error.status === 401 && document.querySelector('meta[name="signed-in"]').content === "yes";

// Returns a message with what to do. Viewers whose session has ended find the way to sign in and back to this page.
export const drawFault = (error) => h("div", { class: "message bad", role: "alert" }, textOf(error),
  mustSignIn(error) ? [" ", h("a", { class: "button", href: `/sign-in${location.hash}` }, "Sign in again")] : null);
