"""Moto as a process of its own, with the one thing that S3 guarantees and moto does not: writes are atomic.

Moto looks whether a key is there and puts it in two steps, so of two threads that put the same key with
``If-None-Match: *`` both may win. Here one request that writes is answered after the other. Prints its port; ends with
its standard input.

Moto can enforce policies (after a POST of ``0`` to ``/moto-api/reset-auth``), but knows neither ``s3:prefix`` nor the
policies of sessions. With ``--policies`` it does: a request to S3 passes what moto checks, all conditions left out, and
then the evaluation of `policies`. As on S3, an absent object is "denied" to who may not list the bucket.
"""

from __future__ import annotations

import io
import logging
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server

Application = Callable[[dict[str, Any], Any], Iterable[bytes]]


def atomic_writes(application: Application) -> Application:
    writing = threading.Lock()

    def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] in ("GET", "HEAD"):
            return application(environ, start_response)
        if environ.get("CONTENT_LENGTH"):  # a slow client must not hold up the others
            environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
        with writing:
            return application(environ, start_response)

    return answer


def with_conditions_and_sessions() -> None:
    from moto.iam import access_control
    from moto.s3.models import s3_backends
    from moto.sts.models import sts_backends
    from policies import allows  # of this folder

    of_moto = access_control.IAMRequestBase.check_action_permitted
    parse = access_control.IAMPolicy.__init__

    def parsed(self: Any, policy: Any) -> None:
        parse(self, policy)
        for statement in self._policy_json["Statement"]:
            statement.pop("Condition", None)

    def check(self: Any, resource: str) -> None:
        of_moto(self, resource)
        if self._service != "s3":
            return
        query = {name: values[0] for name, values in parse_qs(urlsplit(self._path).query).items()}
        context = {"s3:prefix": query["prefix"]} if "prefix" in query else {}
        policies = [_text(policy) for policy in self._access_key.collect_policies()]
        key = getattr(self._access_key, "_access_key_id", None)
        roles = (role for of in sts_backends.values() for one in of.values() for role in one.assumed_roles)
        session = [role.policy for role in roles if role.access_key_id == key and role.policy]

        def may(action: str, what: str) -> bool:
            named = any(allows(policy, action, what, context) for policy in policies)
            return named and all(allows(policy, action, what, context) for policy in session)

        bucket, _, name = resource.rpartition(":")[2].partition("/")
        is_absent = name and unquote(name) not in s3_backends[self.account_id]["aws"].buckets[bucket].keys
        hides = self._action == "s3:GetObject" and is_absent and not may("s3:ListBucket", f"arn:aws:s3:::{bucket}")
        if hides or not may(self._action, resource):
            self._raise_access_denied()

    access_control.IAMPolicy.__init__ = parsed  # type: ignore[method-assign]
    access_control.IAMRequestBase.check_action_permitted = check  # type: ignore[method-assign]


def _text(policy: Any) -> str:
    return policy if isinstance(policy, str) else str(policy["policy_document"])


def serve() -> None:
    if "--policies" in sys.argv:
        with_conditions_and_sessions()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    application = atomic_writes(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=MotoRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)  # noqa: T201 - how the parent learns it
    sys.stdin.read()
    server.shutdown()


if __name__ == "__main__":
    serve()
