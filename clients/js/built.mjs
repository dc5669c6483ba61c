// Notes what the client was built from, so that a source that was changed and not built is seen.
import { createHash } from "node:crypto";
import { readFileSync, writeFileSync } from "node:fs";

const files = ["src/gateway.ts", "lib/gateway.js", "lib/gateway.d.ts"];
const hash = (file) => createHash("sha256").update(readFileSync(new URL(file, import.meta.url))).digest("hex");
const noted = Object.fromEntries(files.map((file) => [file, hash(file)]));
writeFileSync(new URL("built.json", import.meta.url), `${JSON.stringify(noted, null, 2)}\n`);
