"""``python -m benchmarks.first_row ours URL | kafka ADDRESS``: make a table or topic, write a row, and read it.

A process of its own, as a user's first program is.
"""

from __future__ import annotations

import sys
import time

GIVE_UP_SECONDS = 60


def ours(url: str) -> None:
    from streamhouse_spark import Warehouse

    table = Warehouse(url).create_table("bench.first", "id BIGINT, name STRING")
    table.append([{"id": 1, "name": "x"}])
    assert table.to_arrow().num_rows == 1


def kafka(address: str) -> None:
    from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    deadline = time.monotonic() + GIVE_UP_SECONDS
    while True:
        try:
            admin.create_topics([NewTopic("first", 1, 1)])["first"].result(5)
            break
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
    producer = Producer({"bootstrap.servers": address, "acks": "all"})
    producer.produce("first", b'{"id": 1, "name": "x"}')
    producer.flush()
    consumer = Consumer({"bootstrap.servers": address, "group.id": "first"})
    consumer.assign([TopicPartition("first", 0, 0)])
    while (message := consumer.poll(1)) is None or message.error():
        if time.monotonic() > deadline:
            raise TimeoutError("Kafka gave no row")
    consumer.close()


if __name__ == "__main__":
    {"ours": ours, "kafka": kafka}[sys.argv[1]](sys.argv[2])
