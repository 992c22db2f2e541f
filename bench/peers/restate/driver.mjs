// Starts payments through Restate's ingress. Arguments: ingress, admin, worker, and `inside` or `calls`.

import http from "node:http";
import { drive } from "./drive.mjs";
import { payment } from "./steps.mjs";

const [ingress, admin, worker, service] = process.argv.slice(2);
const agent = new http.Agent({ keepAlive: true, noDelay: true });

function call(method, url, body, headers = {}) {
  return new Promise((resolve, reject) => {
    headers["content-type"] = "application/json";
    const request = http.request(url, { method, agent, headers }, (response) => {
      let text = "";
      response.setEncoding("utf8").on("data", (part) => (text += part));
      response.on("end", () => {
        if (response.statusCode >= 300) reject(new Error(`${method} ${url}: ${response.statusCode} ${text}`));
        else resolve(JSON.parse(text));
      });
    });
    request.on("error", reject).end(body === undefined ? undefined : JSON.stringify(body));
  });
}

await call("POST", `${admin}/deployments`, { uri: worker });

await drive(
  async (n) => {
    // Only what has an idempotency key can be attached to.
    const key = { "idempotency-key": String(n) };
    const { invocationId } = await call("POST", `${ingress}/${service}/pay/send`, payment(n), key);
    return () => call("GET", `${ingress}/restate/invocation/${invocationId}/attach`);
  },
  () => agent.destroy(),
);
