"""Many requests, one engine: jobs in, batches to the one worker thread, outcomes back.

    open_job → submit → (queue) → next_batch → complete / fail → the job's `on_resolved`

Rules, each held by a test:
- every job resolves exactly once, whoever is first: result, error, cancel, deadline, fault;
- first in, first out; an idle engine starts at once, a busy one next takes all that fits;
- a job larger than one pass is split; while jobs of both sizes wait, passes alternate, so a small
  job waits for the running pass, then for at most one part of a large job between any two passes
  of small ones, and a large job of k parts is done within 2 k passes of its turn;
- what was cancelled or is late is dropped before dispatch, never while it runs;
- a pass that fails fails its own jobs; an unsound device, a hung pass or a dead worker resolves
  everything at once and nothing is accepted afterwards.
"""

from adjudge.scheduler.admission import QueueLimits
from adjudge.scheduler.batching import Batch, Part
from adjudge.scheduler.exit_codes import ExitCode
from adjudge.scheduler.job import Cancelled, Job, Ran
from adjudge.scheduler.scheduler import Fault, PassReport, Scheduler
from adjudge.scheduler.watchdog import Watchdog
from adjudge.scheduler.worker import Worker

__all__ = [
    "Batch",
    "Cancelled",
    "ExitCode",
    "Fault",
    "Job",
    "Part",
    "PassReport",
    "QueueLimits",
    "Ran",
    "Scheduler",
    "Watchdog",
    "Worker",
]
