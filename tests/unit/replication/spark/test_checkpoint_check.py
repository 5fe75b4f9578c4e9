"""The faults for checkpoints that cannot be written at the location in the federation file."""

from __future__ import annotations

import pytest

from isthmus.replication.spark.checkpoint_check import checkpoint_fault

CASES = {
    "no such scheme": (
        "nosuch://there/flights",
        'org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme "nosuch"\n\tat org.apache.hadoop.fs.FileSystem',
        "checkpoints nosuch://there/flights: Spark has no file system for nosuch://; write a scheme that it has",
    ),
    "a connector that PySpark does not bring": (
        "s3a://bucket/flights",
        "java.lang.RuntimeException: java.lang.ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem not found",
        (
            "checkpoints s3a://bucket/flights: Spark has no file system for s3a://; add org.apache.hadoop:hadoop-aws:3.5.0 to spark: "
            "{settings: {spark.jars.packages: …}}"
        ),
    ),
    "of Azure's": (
        "abfss://c@a.dfs.core.windows.net/flights",
        'org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme "abfss"',
        (
            "checkpoints abfss://c@a.dfs.core.windows.net/flights: Spark has no file system for abfss://; add "
            "org.apache.hadoop:hadoop-azure:3.5.0 to"
        ),
    ),
    "no such host": (
        "hdfs://nowhere:8020/flights",
        "java.lang.IllegalArgumentException: java.net.UnknownHostException: nowhere\n\tat org.apache.hadoop",
        "checkpoints hdfs://nowhere:8020/flights: there is no host nowhere; check the name",
    ),
    "no right": (
        "hdfs://namenode:8020/flights",
        'org.apache.hadoop.security.AccessControlException: Permission denied: user=isthmus, access=WRITE, inode="/"\n\tat org',
        'checkpoints hdfs://namenode:8020/flights cannot be written: Permission denied: user=isthmus, access=WRITE, inode="/"; give',
    ),
    "no folder": (
        "file:///proc/flights",
        "mkdirs failed",
        "checkpoints file:///proc/flights is no folder and cannot be created; name a folder",
    ),
}


@pytest.mark.parametrize(("uri", "text", "reported"), CASES.values(), ids=CASES)
def test_i1_what_only_the_operator_can_mend_is_reported_with_what_to_do(uri: str, text: str, reported: str) -> None:
    fault = checkpoint_fault(uri, text, "3.5.0")
    assert str(fault).startswith(reported)
    assert "\n" not in str(fault)


@pytest.mark.parametrize(
    "text",
    [
        "java.net.ConnectException: Call From driver/10.0.0.5 to namenode:8020 failed on connection exception",
        "org.apache.hadoop.ipc.RemoteException(org.apache.hadoop.hdfs.server.namenode.SafeModeException): Cannot create directory",
    ],
)
def test_i2_what_may_pass_by_itself_is_no_fault(text: str) -> None:
    assert checkpoint_fault("hdfs://namenode:8020/flights", text, "3.5.0") is None
