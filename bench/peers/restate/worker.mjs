// Payments in Restate: `inside` runs the steps in the handler, `calls` makes each step a call of a service.
// Arguments: database, port to listen on.

import http2 from "node:http2";
import * as restate from "@restatedev/restate-sdk";
import { STEPS, effects, stepsOf } from "./steps.mjs";

const [url, port] = process.argv.slice(2);
const { perform } = effects(url);

const inside = restate.service({
  name: "inside",
  handlers: {
    async pay(ctx, payment) {
      for (const step of stepsOf(payment)) await ctx.run(step, () => perform(payment, step));
      return { n: payment.n };
    },
  },
});

// A step's result is in the journal of its call; it needs no journal of its own.
const services = STEPS.map((name) => restate.service({ name, handlers: { perform: (_, payment) => perform(payment, name) } }));

const calls = restate.service({
  name: "calls",
  handlers: {
    async pay(ctx, payment) {
      for (const name of stepsOf(payment)) await ctx.serviceClient({ name }).perform(payment);
      return { n: payment.n };
    },
  },
});

const handler = restate.createEndpointHandler({
  services: [inside, calls, ...services],
  logger: (meta, ...message) => meta.level === "error" && console.error(...message),
});
const server = http2.createServer(handler);
server.on("connection", (socket) => socket.setNoDelay(true));
server.listen(Number(port), "127.0.0.1", () => console.log("ready"));
// Ends with whoever started it.
process.stdin.on("end", () => process.exit(0)).resume();
