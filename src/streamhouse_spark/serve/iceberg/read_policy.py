"""IAM policy that allows reading one table's files and nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Final

from streamhouse_spark.errors import InvalidOptionError
from streamhouse_spark.storage.s3.sts import SESSION_POLICY_CHARS_MAX

_SPECIAL: Final = re.compile(r"[*?$\x00-\x1f\x7f]")
"""Characters with a special meaning in a policy."""


def read_policy(partition: str, bucket: str, prefixes: Sequence[str]) -> str:
    """Return a policy that allows reading and listing the objects under some prefixes.

    Raises `InvalidOptionError` for a prefix that a policy cannot express: a wider one would expose other files.
    """
    for prefix in prefixes:
        if not prefix or _SPECIAL.search(prefix):
            raise InvalidOptionError(
                f"no policy can express exactly the prefix {prefix[:80]!r}; read the table with credentials of your own"
            )
    patterns = [f"{prefix}*" for prefix in prefixes]
    bucket_arn = f"arn:{partition}:s3:::{bucket}"
    statements = [
        {"Effect": "Allow", "Action": "s3:GetObject", "Resource": [f"{bucket_arn}/{pattern}" for pattern in patterns]},
        {
            "Effect": "Allow",
            "Action": "s3:ListBucket",
            "Resource": bucket_arn,
            "Condition": {"StringLike": {"s3:prefix": patterns}},
        },
    ]
    text = json.dumps({"Version": "2012-10-17", "Statement": statements}, separators=(",", ":"))
    if len(text) > SESSION_POLICY_CHARS_MAX:
        raise InvalidOptionError(
            f"the policy for the files of this table has {len(text)} characters, and a store accepts "
            f"{SESSION_POLICY_CHARS_MAX}; read the table with credentials of your own"
        )
    return text
