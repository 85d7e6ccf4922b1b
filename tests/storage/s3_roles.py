"""An S3 server that enforces policies: those of users and roles, and those of sessions."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import botocore.session

from storage.s3_server import S3Server, running_s3_server

ALL_OF_STS_AND_S3 = [{"Effect": "Allow", "Action": ["s3:*", "sts:*"], "Resource": "*"}]
_TRUST = [{"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": "sts:AssumeRole"}]


def document(statements: object) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": statements})


@dataclass
class GuardedS3:
    """The server, and who there is."""

    server: S3Server
    _iam: Any

    def user(self, name: str, policy: str) -> dict[str, str]:
        """Make a user with a policy, or give the one that is there another; returns settings of a warehouse."""
        try:
            self._iam.create_user(UserName=name)
        except self._iam.exceptions.EntityAlreadyExistsException:
            for key in self._iam.list_access_keys(UserName=name)["AccessKeyMetadata"]:
                self._iam.delete_access_key(UserName=name, AccessKeyId=key["AccessKeyId"])
        self._iam.put_user_policy(UserName=name, PolicyName="own", PolicyDocument=policy)
        key = self._iam.create_access_key(UserName=name)["AccessKey"]
        return self.settings(key["AccessKeyId"], key["SecretAccessKey"])

    def role(self, name: str, policy: str) -> str:
        """Make a role that everybody may assume; returns its ARN."""
        role = self._iam.create_role(RoleName=name, AssumeRolePolicyDocument=document(_TRUST))
        self._iam.put_role_policy(RoleName=name, PolicyName="own", PolicyDocument=policy)
        return str(role["Role"]["Arn"])

    def settings(self, access_key_id: str, secret_access_key: str) -> dict[str, str]:
        return {
            "s3.endpoint": self.server.endpoint,
            "s3.region": "us-east-1",
            "s3.access-key-id": access_key_id,
            "s3.secret-access-key": secret_access_key,
        }

    def client(self, service: str, config: Mapping[str, str]) -> Any:
        """Return a client with credentials as Iceberg's clients get them."""
        return botocore.session.get_session().create_client(
            service,
            region_name="us-east-1",
            endpoint_url=self.server.endpoint,
            aws_access_key_id=config["s3.access-key-id"],
            aws_secret_access_key=config["s3.secret-access-key"],
            aws_session_token=config.get("s3.session-token"),
        )


@contextmanager
def guarded_s3() -> Iterator[GuardedS3]:
    """Start a server, with an administrator behind its IAM, and let it enforce policies from then on."""
    with running_s3_server("--policies") as server:
        found = GuardedS3(server, None)
        found._iam = found.client("iam", {"s3.access-key-id": "first", "s3.secret-access-key": "first"})
        everything = document([{"Effect": "Allow", "Action": "*", "Resource": "*"}])
        found._iam = found.client("iam", found.user("administrator", everything))
        request = urllib.request.Request(
            f"{server.endpoint}/moto-api/reset-auth", data=b"0", headers={"Content-Type": "text/plain"}
        )
        with urllib.request.urlopen(request) as answer:
            assert answer.status == 200
        yield found
