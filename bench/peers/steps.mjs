// The work of a payment saga, the same for every peer: one idempotent insert a step, committed by itself.

import pg from "pg";

const DO = { name: "do", text: "insert into bench_effect (saga, step) values ($1, $2) on conflict do nothing" };

/** The steps of payment n in order; every fourth is in a foreign currency. */
export function stepsOf(payment) {
  const fx = payment.fx ? ["BookFx"] : [];
  return ["CheckBalance", "CheckDailyLimit", ...fx, "SubmitPayment"];
}

export const STEPS = stepsOf({ fx: true });

export function payment(n) {
  return { n, fx: n % 4 === 0, amount: { currency: n % 4 === 0 ? "USD" : "EUR", value: "100.00" } };
}

/** A pool that does steps in the database at `url`; pg sets TCP_NODELAY by itself. */
export function effects(url) {
  const pool = new pg.Pool({ connectionString: url, max: 16 });
  return {
    async perform(payment, step) {
      await pool.query({ ...DO, values: [String(payment.n), step] });
      return { step, ok: true };
    },
    close: () => pool.end(),
  };
}
