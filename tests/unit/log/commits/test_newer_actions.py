"""Records of a newer version of the package."""

import pytest

from streamhouse_spark import FormatVersionError
from streamhouse_spark.log.actions import action_from_json


def test_an_action_of_a_newer_version_says_so():
    with pytest.raises(FormatVersionError, match=r"'teleport'.*upgrade streamhouse-spark"):
        action_from_json({"type": "teleport"}, memoryview(b""))
