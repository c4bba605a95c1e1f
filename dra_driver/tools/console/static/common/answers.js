// What pages rely on in the answers to their questions: for each question, the fields of its document and their types.
// Fields that may be null are left out. A test compares this table with the schemas of the documents.

const FIELDS = {
  "summary": {
    "nodes": "number", "gpus": "number", "states": "object", "products": "object", "strip": "text",
    "version": "number", "source": "text", "live": "boolean", "kubernetes": "text", "gates": "text", "notes": "list",
    "claims": "number", "pods": "number", "namespaces": "list", "loading": "list", "unseen": "list"
  },
  "attention": {
    "version": "number", "counts": "object", "flags": "list", "namespaces": "list", "classes": "list",
    "unseen": "list"
  },
  "fleet": {
    "version": "number", "total": "number", "matching": "number", "offset": "number", "nodes": "list",
    "notes": "list"
  },
  "device": {
    "node": "text", "driver": "text", "pool": "text", "device": "text", "published": "boolean", "attributes": "list",
    "capacity": "list", "taints": "list", "placements": "object", "holders": "list"
  },
  "claims": {
    "version": "number", "pending": "number", "matching": "number", "lines": "number", "offset": "number",
    "rows": "list", "unseen": "list"
  },
  "claim": {
    "subject": "text", "namespace": "text", "name": "text", "state": "text", "terminating": "boolean",
    "claims": "list", "devices": "list", "pods": "list", "nodes": "list", "trouble": "text", "requests": "list", "holds": "list", "users": "list",
    "containers": "list"
  },
  "explanation": {
    "subject": "object", "ok": "boolean", "sentence": "text", "nodes": "list", "aborts": "boolean",
    "kubernetes": "text", "exact": "boolean", "notes": "list", "gates": "object"
  },
  "what-if": {"now": "list", "then": "list", "kubernetes": "text"},
  "selector": {
    "kubernetes": "text", "verdicts": "text", "gates": "object", "environment": "text", "devices": "number",
    "nodes": "number", "sources": "list", "notes": "list", "selector": "object", "costLimit": "number",
    "counts": "object", "rows": "list", "moreRows": "number", "nearestMisses": "list", "findings": "list"
  },
  "selector/explain": {
    "kubernetes": "text", "verdicts": "text", "gates": "object", "environment": "text", "devices": "number",
    "nodes": "number", "sources": "list", "notes": "list", "queries": "list"
  },
  "doctor": {"isClean": "boolean", "lookedAt": "list", "findings": "list", "unseen": "list"},
  "usage": {
    "source": "text", "end": "text", "by": "text", "currency": "text", "rows": "list", "total": "object",
    "idleClaims": "list", "sizes": "list", "unpriced": "list", "notes": "list"
  },
  "dashboard": {
    "name": "text", "title": "text", "about": "text", "begin": "text", "end": "text", "panels": "list",
    "others": "list"
  },
  "history": {"phase": "text", "node": "text", "conditions": "list", "events": "list", "eventsKnown": "boolean"},
  "readings": {"at": "text", "nodes": "object"},
  "selector/completions": {"candidates": "list"},
  "offers": {"doctor": "boolean", "usage": "boolean", "dashboard": "boolean", "namespaces": "list"}
};

const ARE = {
  list: Array.isArray,
  object: isObject,
  text: (value) => typeof value === "string",
  number: (value) => typeof value === "number",
  boolean: (value) => typeof value === "boolean",
};

export function isObject(value) {
  return value !== null && typeof value === "object" && !Array.isArray(value);
}

// Returns what is wrong with the answer to a question, "" if nothing is.
export function faultOf(name, found) {
  const wrong = Object.entries(FIELDS[name]).find(([field, type]) => !ARE[type](found[field]));
  if (wrong === undefined) return "";
  const [field, type] = wrong;
  return `the answer to ${name} can't be shown: its field ${field} is ${field in found ? `no ${type}` : "missing"}`;
}
