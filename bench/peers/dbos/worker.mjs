// Payments in DBOS: a workflow whose steps are inserts, started in the same process. Argument: database.

import { DBOS } from "@dbos-inc/dbos-sdk";
import { drive } from "./drive.mjs";
import { effects, payment, stepsOf } from "./steps.mjs";

const [url] = process.argv.slice(2);
const { perform, close } = effects(url);

async function pay(payment) {
  for (const step of stepsOf(payment)) await DBOS.runStep(() => perform(payment, step), { name: step });
  return { n: payment.n };
}
const workflow = DBOS.registerWorkflow(pay, { name: "pay" });

DBOS.setConfig({
  name: "bench",
  systemDatabaseUrl: url,
  systemDatabasePoolSize: 20,
  runAdminServer: false,
  logLevel: "error",
});
await DBOS.launch();

await drive(
  async (n) => {
    const handle = await DBOS.startWorkflow(workflow, { workflowID: String(n) })(payment(n));
    return () => handle.getResult();
  },
  async () => {
    await DBOS.shutdown();
    await close();
  },
);
