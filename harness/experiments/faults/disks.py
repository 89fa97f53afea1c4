"""A save on a real file system whose block writes are logged. The driver cuts its power later."""

from __future__ import annotations

import json
from pathlib import Path

from harness.durability.blocks import log
from harness.durability.blocks.disk import let_commit
from harness.experiments.faults import left as lefts
from harness.experiments.faults.recorded_save import DISK_INSTANTS, DISK_ORDER
from harness.experiments.faults.states import NEWER
from harness.experiments.faults.subject import open_subject
from harness.wire.case import Case
from harness.worker import verify
from harness.worker.bench import Bench
from harness.worker.failures import describe


def save_on_disk(bench: Bench, case: Case) -> None:
    """Save beside the older checkpoint that the driver has put on a disk, and note the instants.

    An error of the save is noted too, because the method has been measured elsewhere by then.
    """
    recorded = bench.folders.recording(case)
    order = json.loads((recorded / DISK_ORDER).read_text())
    folder = Path(order["folder"])
    block_log = Path(order["log"])
    bench.train()
    bench.add_fresh_bits()
    digests = verify.digests_to_json(bench.digests())
    lefts.store_expected(recorded, lefts.of_disk(order["file_system"]), digests)
    subject = open_subject(bench, case, folder)
    error = ""
    bench.output.enter("save")
    try:
        pending = subject.save(bench.state, folder / NEWER)
        pending.staged()
        pending.finished()
    except Exception as raised:
        error = describe(raised)
    finished = log.count(block_log)
    # Names without their bytes come to the disk after the save, if nobody has flushed them.
    let_commit(folder)
    noted = {"finished": finished, "settled": log.count(block_log), "error": error}
    (recorded / DISK_INSTANTS).write_text(json.dumps(noted))
    bench.close_method(subject)
