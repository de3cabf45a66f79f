"""Write a database with the documented tables of msprof and torch_npu. The session `npu` reads one
that torch_npu's own analysis wrote.
"""

from __future__ import annotations

import sqlite3

PYTHON, DEVICE = 4711, 0
BEGAN = 1_795_336_088_000_000_000
THREAD = PYTHON << 32 | 4712
SCHEMA = """
CREATE TABLE STRING_IDS (id INTEGER PRIMARY KEY, value TEXT);
CREATE TABLE ENUM_API_TYPE (id INTEGER PRIMARY KEY, name TEXT);
CREATE TABLE META_DATA (name TEXT, value TEXT);
CREATE TABLE HOST_INFO (hostUid TEXT, hostName TEXT);
CREATE TABLE RANK_DEVICE_MAP (rankId INTEGER, deviceId INTEGER);
CREATE TABLE CONNECTION_IDS (id INTEGER, connectionId INTEGER);
CREATE TABLE PYTORCH_API (startNs TEXT, endNs TEXT, globalTid INTEGER, connectionId INTEGER, name INTEGER, sequenceNumber INTEGER, fwdThreadId INTEGER, inputDtypes INTEGER, inputShapes INTEGER, callchainId INTEGER, type INTEGER);
CREATE TABLE CANN_API (startNs INTEGER, endNs INTEGER, type INTEGER, globalTid INTEGER, connectionId INTEGER PRIMARY KEY, name INTEGER);
CREATE TABLE MSTX_EVENTS (startNs INTEGER, endNs INTEGER, eventType INTEGER, rangeId INTEGER, category INTEGER, message INTEGER, globalTid INTEGER, endGlobalTid INTEGER, domainId INTEGER, connectionId INTEGER);
CREATE TABLE TASK (startNs INTEGER, endNs INTEGER, deviceId INTEGER, connectionId INTEGER, globalTaskId INTEGER, globalPid INTEGER, taskType INTEGER, contextId INTEGER, streamId INTEGER, taskId INTEGER, modelId INTEGER);
CREATE TABLE COMPUTE_TASK_INFO (name INTEGER, globalTaskId INTEGER PRIMARY KEY, blockDim INTEGER, mixBlockDim INTEGER, taskType INTEGER, opType INTEGER, inputFormats INTEGER, inputDataTypes INTEGER, inputShapes INTEGER, outputFormats INTEGER, outputDataTypes INTEGER, outputShapes INTEGER, attrInfo INTEGER);
CREATE TABLE COMMUNICATION_OP (opName INTEGER, startNs INTEGER, endNs INTEGER, connectionId INTEGER, groupName INTEGER, opId INTEGER PRIMARY KEY, relay INTEGER, retry INTEGER, dataType INTEGER, algType INTEGER, count NUMERIC, opType INTEGER);
CREATE TABLE COMMUNICATION_TASK_INFO (name INTEGER, globalTaskId INTEGER, taskType INTEGER, planeId INTEGER, groupName INTEGER, notifyId INTEGER, rdmaType INTEGER, srcRank INTEGER, dstRank INTEGER, transportType INTEGER, size INTEGER, dataType INTEGER, linkType INTEGER, opId INTEGER);
CREATE TABLE GC_RECORD (startNs INTEGER, endNs INTEGER, globalTid INTEGER);
"""
STRINGS = ["", "aten::mm", "2,2;\r\n2,2", "launch", "MatMulV2", "AI_CORE", "hcom_allReduce__428_0_1", "group", "Notify_Wait", "NOTIFY_WAIT", "update", "weights synced", "EVENT_RECORD", "Enqueue@mm", "train.py(7): step"]  # fmt: skip
NUMBER = {text: number for number, text in enumerate(STRINGS)}


def at(us):
    return BEGAN + us * 1000


def write_database(path, *, schema=SCHEMA):
    """Write one matrix product from the host to the device, a collective, a range, a mark, and a
    garbage collection.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with sqlite3.connect(path) as connection:
        connection.executescript(schema)

        def insert(table, *rows):
            connection.executemany(
                f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})",
                [[NUMBER.get(value, value) if isinstance(value, str) else value for value in row] for row in rows],
            )  # fmt: skip

        connection.executemany("INSERT INTO STRING_IDS VALUES (?, ?)", enumerate(STRINGS))
        connection.execute("INSERT INTO ENUM_API_TYPE VALUES (10000, 'node')")
        connection.execute(
            "INSERT INTO META_DATA VALUES ('stepprof', ?)", ['{"role": "actor", "rank": 3, "host": "n1"}']
        )
        connection.execute("INSERT INTO HOST_INFO VALUES ('1', 'n2')")
        insert("RANK_DEVICE_MAP", (5, DEVICE))
        insert("CONNECTION_IDS", (7, 99))
        insert(
            "PYTORCH_API",
            (str(at(0)), str(at(10)), THREAD, 7, "aten::mm", 5, 0, None, "2,2;\r\n2,2", None, 50001),
            (str(at(2)), str(at(3)), THREAD, None, "Enqueue@mm", None, None, None, None, None, 50002),
            (str(at(0)), str(at(90)), THREAD, None, "train.py(7): step", None, None, None, None, None, 50003),
        )
        insert("CANN_API", (at(4), at(5), 10000, THREAD, 99, "launch"))
        insert(
            "MSTX_EVENTS",
            (at(0), at(80), 2, 1, 0, "update", THREAD, THREAD, 1, 4294967295),
            (at(81), at(81), 0, 0, 0, "weights synced", THREAD, THREAD, 1, 98),
        )
        insert(
            "TASK",
            (at(20), at(40), DEVICE, 99, 1, PYTHON, "AI_CORE", 0, 3, 1, 0),
            (at(41), at(60), DEVICE, -1, 2, PYTHON, "NOTIFY_WAIT", 0, 4, 2, 0),
            (at(61), at(62), DEVICE, 4294967295, 3, PYTHON, "EVENT_RECORD", 0, 3, 3, 0),
            (at(82), at(82), DEVICE, 98, 4, PYTHON, "EVENT_RECORD", 0, 3, 4, 0),
        )
        insert("COMPUTE_TASK_INFO", ("MatMulV2", 1, 24, 0, "AI_CORE", "MatMulV2", 0, 0, "2,2;\r\n2,2", 0, 0, 0, 0))  # fmt: skip
        insert("COMMUNICATION_OP", ("hcom_allReduce__428_0_1", at(41), at(60), 97, "group", 1, 0, 0, 3, 0, 4, 0))  # fmt: skip
        insert("COMMUNICATION_TASK_INFO", ("Notify_Wait", 2, 0, 0, "group", 0, 0, 0, 0, 0, 0, 0, 0, 1))
        insert("GC_RECORD", (at(50), at(55), THREAD))
    connection.close()
    return path
