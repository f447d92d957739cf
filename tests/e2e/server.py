"""Starts a splash server for the tests, talks raw HTTP to it, reads its metrics."""
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time

SPLASH = os.environ.get("SPLASH_BINARY", "build/splash")
MODEL = os.environ.get("SPLASH_E2E_MODEL", "")
START_SECONDS = 180


class Server:
    """One process; its standard error is kept, so that tests can look for what must not be in it."""

    def __init__(self, *options, environment=None, model=MODEL):
        command = [SPLASH, "serve", *([model] if model else []), "--port", "0", *options]
        self.lines = []
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                        env={**os.environ, **(environment or {})})
        self.ready = threading.Event()
        self.port = None
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        if not self.ready.wait(START_SECONDS) or self.port is None:
            self.process.kill()
            raise RuntimeError("the server did not start:\n" + self.log)

    def _read(self):
        for line in self.process.stderr:
            self.lines.append(line)
            found = re.search(r"Ready · .* (http://\S+):(\d+)", line)
            if found:
                self.port = int(found.group(2))
                self.ready.set()
        self.ready.set()

    @property
    def log(self):
        return "".join(self.lines)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def request(self, method, path, body=None, headers=None):
        """(status, headers, body) of one request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        if body is not None and not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        headers = dict(headers or {})
        if body is not None:
            headers.setdefault("Content-Type", "application/json")
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        content = response.read()
        connection.close()
        return response.status, response.headers, content

    def chat(self, **fields):
        fields.setdefault("messages", [{"role": "user", "content": "Hello!"}])
        status, _, body = self.request("POST", "/v1/chat/completions", fields)
        return status, json.loads(body)

    def raw(self, data, read_seconds=10):
        """Sends bytes as they are, returns what comes back until the server closes or falls silent."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=read_seconds) as connection:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            received = b""
            try:
                while piece := connection.recv(65536):
                    received += piece
            except TimeoutError:
                pass
            return received

    def open_stream(self, **fields):
        """A connection in the middle of a streamed answer: after its first bytes."""
        fields.setdefault("messages", [{"role": "user", "content": "Tell me a long story."}])
        body = json.dumps({"stream": True, **fields}).encode()
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                           + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        received = b""
        while received.count(b"data: ") < 2:
            piece = connection.recv(65536)
            if not piece:
                break
            received += piece
        return connection, received

    def metrics(self):
        _, _, body = self.request("GET", "/metrics")
        values = {}
        for line in body.decode().splitlines():
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                values[name] = float(value)
        return values

    def wait_until(self, condition, seconds=10):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if condition():
                return True
            time.sleep(0.02)
        return condition()

    def idle(self):
        values = self.metrics()
        return values["splash_requests_running"] == 0 and values["splash_requests_queued"] == 0

    def stop(self, how=signal.SIGTERM, seconds=30):
        """Exit code and how long it took."""
        begun = time.monotonic()
        self.process.send_signal(how)
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        self.reader.join(5)
        self.process.stderr.close()
        return code, time.monotonic() - begun
