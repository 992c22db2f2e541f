"""A context without PostgreSQL: it does commands that dipmo sends it over HTTP. Standard library only.

BookFxContract is done at once. SettleFxContract takes its time: 202 first, the answer later by the API.
A real context keeps DONE wherever it keeps its contracts: the Idempotency-Key is what must not be done twice.
"""

import json
import os
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOKEN = os.environ.get("FX_TOKEN")  # what dipmo must bring
API = os.environ.get("DIPMO_API", "http://127.0.0.1:8080")  # where answers go
API_TOKEN = os.environ.get("DIPMO_TOKEN", "")  # a token of the role client
DONE = {}  # idempotency key -> (status, answer)
LOCK = threading.Lock()


def book(command):
    amount = command["payload"].get("amount", 0)
    if amount <= 0:
        return 422, {"code": "BAD_AMOUNT", "message": f"{amount} cannot be booked"}
    return 200, {"contract": f"FX-{command['key']}", "amount": amount}


def settle(command):
    """Runs after the 202: does the work, then answers until dipmo has it."""
    body = json.dumps({"status": "completed", "result": {"settled": command["key"]}}).encode()
    request = urllib.request.Request(
        f"{API}/v1/commands/{command['commandId']}/answer",
        body,
        {"Content-Type": "application/json", "Authorization": f"Bearer {API_TOKEN}"},
    )
    for attempt in range(10):
        try:
            return urllib.request.urlopen(request, timeout=10).close()
        except urllib.error.HTTPError as error:
            # 409 with Retry-After: our 202 has not been stored yet. Any other refusal is final.
            if not error.headers.get("Retry-After"):
                return print(f"{command['commandId']}: answer refused with {error.code}", flush=True)
        except OSError as error:
            print(f"{command['commandId']}: {error}", flush=True)
        time.sleep(0.1 * 2**attempt)


class Worker(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # keeps the connection
    disable_nagle_algorithm = True

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if TOKEN and self.headers["Authorization"] != f"Bearer {TOKEN}":
            return self.answer(401, {"code": "UNAUTHORIZED", "message": "another token is needed"})
        command, key = json.loads(body), self.headers["Idempotency-Key"]
        if command["name"] == "SettleFxContract":
            self.answer(202, {}, {"Dipmo-Lease-Seconds": "60"})
            return threading.Thread(target=settle, args=(command,)).start()
        with LOCK:
            if key not in DONE:
                DONE[key] = book(command)
        self.answer(*DONE[key])

    def answer(self, status, body, headers=None):
        body = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "8081"))), Worker)
    print(f"listening on {server.server_port}", flush=True)
    server.serve_forever()
