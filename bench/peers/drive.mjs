// Starts sagas as the bench asks for it, one line of JSON a request on stdin, one an answer on stdout.

import readline from "node:readline";

/**
 * `start(n)` resolves when payment n has durably begun, to a function that resolves with its result.
 * Ends when stdin is closed: whoever started this program is gone then.
 */
export async function drive(start, stop) {
  console.log("ready");
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const { drain, pace } = JSON.parse(line);
    const answer = drain ? await drained(start, drain) : await paced(start, pace);
    console.log(JSON.stringify(answer));
  }
  await stop();
  process.exit(0);
}

/** `count` sagas by `starters` that each start the next one as soon as the last has begun. */
async function drained(start, { first, count, starters }) {
  const began = performance.now();
  const results = [];
  let next = first;
  const starter = async () => {
    while (next < first + count) results.push((await start(next++))());
  };
  await Promise.all(Array.from({ length: starters }, starter));
  await Promise.all(results);
  return { seconds: (performance.now() - began) / 1000 };
}

/** Saga n is due n intervals after the beginning, whatever became of those before it. */
async function paced(start, { first, count, rate }) {
  const began = performance.now();
  const one = async (n) => {
    const due = began + ((n - first) * 1000) / rate;
    await new Promise((resolve) => setTimeout(resolve, due - performance.now()));
    const at = performance.now();
    await (await start(n))();
    return performance.now() - at;
  };
  const milliseconds = await Promise.all(Array.from({ length: count }, (_, i) => one(first + i)));
  return { milliseconds };
}
