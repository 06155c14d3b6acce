"""A broker that librdkafka has in itself: prints where it is, goes down and up as it is told, and ends with its input."""

import ctypes
import sys

library = ctypes.CDLL("librdkafka.so.1")
pointer = ctypes.c_void_p
for name in ("conf_new", "new", "mock_cluster_new"):
    getattr(library, f"rd_kafka_{name}").restype = pointer
library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p

client = library.rd_kafka_new(0, pointer(library.rd_kafka_conf_new()), None, ctypes.c_size_t(0))
cluster = pointer(library.rd_kafka_mock_cluster_new(pointer(client), 1))
library.rd_kafka_mock_topic_create(cluster, b"flows", 3, 1)
print(library.rd_kafka_mock_cluster_bootstraps(cluster).decode(), flush=True)
for line in sys.stdin:
    if line == "down\n":
        library.rd_kafka_mock_broker_set_down(cluster, 1)
    else:
        library.rd_kafka_mock_broker_set_up(cluster, 1)
    print("done", flush=True)
