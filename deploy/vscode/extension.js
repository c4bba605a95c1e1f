// Starts `dra-driver cel lsp` for the selectors in YAML, JSON and values of charts, and starts it anew with new settings.
"use strict";

const vscode = require("vscode");
const { LanguageClient } = require("vscode-languageclient/node");

const LANGUAGES = ["yaml", "json", "helm"];

let client;

async function start() {
  const settings = vscode.workspace.getConfiguration("draDriver");
  const server = { command: settings.get("command"), args: ["cel", "lsp", ...settings.get("options")] };
  const documents = { documentSelector: LANGUAGES.map((language) => ({ language })) };
  client = new LanguageClient("draDriver", "DRA selectors", server, documents);
  await client.start();
}

async function stop() {
  const stopping = client;
  client = undefined;
  if (stopping?.isRunning()) {
    await stopping.stop();
  }
}

async function restart(event) {
  if (event.affectsConfiguration("draDriver")) {
    await stop();
    await start();
  }
}

async function activate(context) {
  context.subscriptions.push(vscode.workspace.onDidChangeConfiguration(restart));
  await start();
}

module.exports = { activate, deactivate: stop };
