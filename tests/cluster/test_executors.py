"""The Spark session on a cluster: jars, Python and Delta reach the executors."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

#: Run in a process of its own: the test process has a local session already.
PROGRAM = """
import json, os, sys
import pyarrow as pa
from mview.config import Config
from mview.session.spark import spark_session

folder, section = sys.argv[1], json.loads(sys.argv[2])
spark = spark_session(Config(path=f"{folder}/mview.yml", store=f"{folder}/store", spark=section))

def work(batches):
    from pyspark import TaskContext
    for batch in batches:
        total = sum(batch.column(0).to_pylist())
        answer = {"place": [os.getcwd()], "total": [total], "python": [sys.executable]}
        yield pa.RecordBatch.from_pydict(answer)

# A barrier stage runs all its tasks at once, so on all executors.
rows = spark.range(0, 1000, 1, 2).mapInArrow(
    work, "place string, total bigint, python string", barrier=True
).collect()
path = f"{folder}/table"
spark.range(0, 1000, 1, 2).write.format("delta").save(path)
count = spark.read.format("delta").load(path).count()
partitions = spark.conf.get("spark.sql.shuffle.partitions")
print(json.dumps({"rows": [list(r) for r in rows], "count": count, "partitions": partitions}))
spark.stop()
"""


@pytest.mark.spark
@pytest.mark.service
@pytest.mark.long
def test_work_runs_on_both_workers(spark_cluster, tmp_path):
    section = spark_cluster.settings()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), json.dumps(section)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    places = {place for place, _, _ in answer["rows"]}
    assert len(places) == 2
    assert all("/work0/" in place or "/work1/" in place for place in places)
    assert sum(total for _, total, _ in answer["rows"]) == 499_500
    assert {python for _, _, python in answer["rows"]} == {sys.executable}
    assert answer["count"] == 1000
    assert answer["partitions"] == "2"
    assert done.stderr == ""
