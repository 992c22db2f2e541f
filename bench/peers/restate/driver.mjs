// Starts payments through Restate's ingress. Arguments: ingress, admin, worker, and `inside` or `calls`.

import http from "node:http";
import { drive } from "./drive.mjs";
import { payment } from "./steps.mjs";

const [ingress, admin, worker, service] = process.argv.slice(2);
const run = `${Date.now()}`;
const agent = new http.Agent({ keepAlive: true, noDelay: true, maxSockets: Infinity });

function call(method, url, body, more = {}) {
  return new Promise((resolve, reject) => {
    const headers = { "content-type": "application/json", ...more };
    const request = http.request(url, { method, agent, headers }, (response) => {
      let text = "";
      response.setEncoding("utf8").on("data", (part) => (text += part));
      response.on("end", () => {
        if (response.statusCode >= 300) reject(new Error(`${method} ${url}: ${response.statusCode} ${text}`));
        else resolve(text === "" ? undefined : JSON.parse(text));
      });
    });
    request.on("error", reject).end(body === undefined ? undefined : JSON.stringify(body));
  });
}

await call("POST", `${admin}/deployments`, { uri: worker });
await drive(async (n) => {
  if (process.env.MODE === "send") {
    const { invocationId } = await call("POST", `${ingress}/${service}/pay/send`, payment(n), { "idempotency-key": `${run}-${n}` });
    return () => call("GET", `${ingress}/restate/invocation/${invocationId}/attach`);
  }
  const result = call("POST", `${ingress}/${service}/pay`, payment(n));
  if (process.env.MODE === "closed") await result;
  return () => result;
}, () => agent.destroy());
