// Signing in: the token is exchanged for the name of a session, in a cookie that no script can read.

const form = document.getElementById("form");
const field = document.getElementById("token");
const fault = document.getElementById("fault");
const button = form.querySelector("button");

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  fault.hidden = true;
  button.disabled = true;
  const body = JSON.stringify({ token: field.value.trim() });
  const answer = await fetch("/sign-in", { method: "POST", headers: { "content-type": "application/json" }, body }).catch(() => null);
  button.disabled = false;
  if (answer?.ok) {
    field.value = "";
    location.replace(`/${location.hash}`);
    return;
  }
  const document = await answer?.json().catch(() => null);
  fault.textContent = [document?.error?.message ?? "The console did not answer.", document?.error?.hint].filter(Boolean).join(": ");
  fault.hidden = false;
  field.select();
});
field.focus();

// A viewer who followed a link on another site arrives here without the cookie, which browsers send only with requests
// that this site itself made.
fetch("/api/v1/offers").then((answer) => { if (answer.ok) location.replace(`/${location.hash}`); }).catch(() => {});
