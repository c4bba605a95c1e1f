// CEL for the editor, which only needs to highlight words. The server decides whether an expression is valid.

import { StreamLanguage } from "../vendor/codemirror-language.js";

const WORDS = new Set(["true", "false", "null", "in"]);
const KNOWN = new Set(["device", "cel", "has", "all", "exists", "exists_one", "map", "filter", "bind"]);

export const cel = StreamLanguage.define({
  name: "cel",
  token(stream) {
    if (stream.eatSpace()) return null;
    if (stream.match("//")) { stream.skipToEnd(); return "comment"; }
    if (stream.match(/^[rRbB]{0,2}("""[^]*?"""|'''[^]*?'''|"(?:[^"\\]|\\.)*"?|'(?:[^'\\]|\\.)*'?)/)) return "string";
    if (stream.match(/^(0x[0-9a-fA-F]+u?|\d+\.\d+(e[+-]?\d+)?|\d+u?)/)) return "number";
    const word = stream.match(/^[A-Za-z_]\w*/);
    if (word) return WORDS.has(word[0]) ? "keyword" : KNOWN.has(word[0]) ? "variableName.standard" : stream.peek() === "(" ? "propertyName" : "variableName";
    if (stream.match(/^(&&|\|\||[=!<>]=|[-+*/%<>!?:])/)) return "operator";
    stream.next();
    return null;
  },
});
