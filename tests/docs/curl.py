"""curl, as far as the documentation uses it, by httpx2: for machines without curl, and to make the requests twice."""

from __future__ import annotations

import argparse
import ssl
import sys

import httpx2


def main() -> None:
    """`curl -sS[N] URL [-H 'Name: value']… [-d BODY]`, with the answer on stdout."""
    parser = argparse.ArgumentParser(prog="curl")
    parser.add_argument("-s", "-S", "-sS", action="count")
    parser.add_argument("-sSN", dest="live", action="store_true")
    parser.add_argument("-H", dest="headers", action="append", default=[])
    parser.add_argument("-d", dest="body")
    parser.add_argument("url")
    asked = parser.parse_args()
    headers = dict(header.split(": ", maxsplit=1) for header in asked.headers)
    method = "GET" if asked.body is None else "POST"
    # As curl does, line ends within -d are left out.
    body = None if asked.body is None else asked.body.replace("\n", "").encode()
    plain = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with httpx2.Client(verify=plain, trust_env=False) as client:
        if asked.live:
            with client.stream(method, asked.url, headers=headers, content=body, timeout=None) as answer:
                for text in answer.iter_text():
                    sys.stdout.write(text)
                    sys.stdout.flush()
            return
        sys.stdout.write(client.request(method, asked.url, headers=headers, content=body).text)


if __name__ == "__main__":
    main()
