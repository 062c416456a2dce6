"""What the ledger knows, and what can be told from it: `pecan_ray.job.ledger` changes it."""

from __future__ import annotations

from pecan_ray.job.assign_leases import all_given
from pecan_ray.job.dropped import DroppedData
from pecan_ray.job.epoch_end import EpochEnd
from pecan_ray.job.fatal_elements import FatalElementTracker
from pecan_ray.job.ledger_shape import LedgerShape
from pecan_ray.job.left_epochs import LeftEpochs
from pecan_ray.job.leftovers import Leftovers
from pecan_ray.job.own_ranks import OwnRanks, RankNodes
from pecan_ray.job.pending_leases import WorkerLeaseState
from pecan_ray.job.queues import Queues
from pecan_ray.job.resume_point import BranchPoint, ResumePoint
from pecan_ray.job.rounds import Rounds
from pecan_ray.job.row_runs import RowRuns
from pecan_ray.job.second_workers import SecondWorkers
from pecan_ray.job.whole_plan import ProducedBatches, WholePlan


class LedgerState:
    """Where the data of a job is."""

    def __init__(self, shape: LedgerShape, start: ResumePoint | None = None) -> None:
        self.shape = shape
        self.epoch = shape.first_epoch if start is None else start.epoch
        self.finished = self.ran_dry = False
        """An endless run has ended, since an epoch of it had not a single batch."""
        self.queues = Queues(shape, start)
        self.runs = RowRuns(shape, self.queues, continues=start is not None)
        self.seconds = SecondWorkers(self.queues, self.runs, shape.batch_size)
        self.rank_nodes = RankNodes(shape)
        self.produced = ProducedBatches({} if start is None else {start.epoch: start.used_batches})
        self.workers: dict[str, WorkerLeaseState] = {}
        self.leftovers = Leftovers(shape.groups, shape.batch_size, only_full=shape.drop_remainder)
        self.rounds = Rounds(shape.world_size, made=shape.coordinated)
        self.counts = [0] * shape.world_size
        """Batches of this epoch that each rank has received and not given back."""
        self.dropped, self.left = DroppedData(), LeftEpochs(shape.world_size)
        self.left_out_elements = 0
        self.changes = 0
        """Grows whenever a worker that was told to wait might be told something else."""
        self._lost: dict[str, WorkerLeaseState] = {}
        """Of the workers those that are gone, and about which ranks have yet to settle."""
        self._end, self._whole = EpochEnd(), WholePlan()
        self.start = start or ResumePoint(self.epoch, (BranchPoint(),) * shape.branches)
        """Where the job has begun."""
        self._in_turn_from = self.epoch if start is None or start.is_beginning else self.epoch + 1
        """From this epoch on one worker alone has made rows."""
        self.fatal_elements = FatalElementTracker(shape.from_front)

    def _living(self, worker: str) -> WorkerLeaseState | None:
        state = self.workers.get(worker)
        return None if self.finished or state is None or state.unresolved is not None else state

    def _note_workers(self, *, lost: bool = False) -> None:
        """Note whether several workers make rows of this epoch, at a time or one after the other."""
        if lost or len(self.workers) > 1:
            self._in_turn_from = self.epoch + 1

    def is_in_turn(self, epoch: int) -> bool:
        """Tell whether all that is used of an epoch comes before all else of it, as one worker has read it."""
        # Decision 35: a strict sequence is one whichever workers are lost, and goes on from no other one.
        return self.shape.in_turn and (self.shape.in_order or epoch >= self._in_turn_from)

    @property
    def rows_in_turn(self) -> int:
        """Rows of the epoch, or elements where rows are joined, that have had their turn, where these come in order."""
        if self.shape.joined:
            return self.runs.in_turn.elements
        # Rank r of w gets batches r, r + w and so on. The first one that its rank has not received ends what has come.
        ranks = self.shape.world_size
        return min(count * ranks + rank for rank, count in enumerate(self.counts)) * self.shape.batch_size

    def _own_ranks(self, worker: str) -> OwnRanks | None:
        """Return the ranks that a worker serves first; None: none before others."""
        return self.rank_nodes.own(worker, self.workers, self.runs.window(len(self.workers)))

    def share(self, worker: str, branch: int = 0) -> int:
        """Return how many leases of a branch a worker may take at a time, so that all have work to the end."""
        group = self.workers[worker].group if worker in self.workers else ()
        # A group becomes one batch, so its worker may take all of it at once.
        return len(group) or self.queues.share(worker, branch, len(self.workers))

    def unresolved(self) -> dict[str, set[int]]:
        """Return the lost workers about which ranks have yet to settle, and these ranks."""
        return {name: state.unresolved for name, state in self._lost.items() if state.unresolved}

    def allowed(self) -> int:
        """Return how many batches of this epoch every rank may use."""
        return self.rounds.in_epoch if self.shape.coordinated else self._end.allowed(self.counts)

    def keeps(self) -> int | None:
        """Return how many batches every rank keeps, where the richer ones must give back; None while all may go on."""
        return None if self.finished or self._end.left or not self._drained() else self._end.level

    def level(self) -> int | None:
        """Return how many batches every rank keeps of an epoch that all have left; None while some are in it."""
        return self._end.level if self._end.left else None

    def closing(self) -> bool:
        """Tell whether all data of the epoch is given out."""
        # A page of the listing or a pass that is to come may still fill batches. Until then leftovers are kept back.
        return self.queues.is_complete and not (self.queues.waiting() or self.queues.passes_left or self.fatal_elements)

    def awaits_acks(self) -> bool:
        """Tell whether the epoch may end with the next acknowledgement: trainers then send each at once."""
        # Ranks use batches in step, so that others may wait for what one has received.  A trainer that is alone keeps
        # nobody waiting while a worker still makes batches (decision 210).
        busy = self.shape.world_size == 1 and any(state.working for state in self.workers.values())
        return self.closing() and not busy

    def _has_nothing_left(self) -> bool:
        """Tell whether the trainers have all data of the epoch, also where workers have yet to say that."""
        if not self.closing() or self.leftovers:
            return False
        return self._all_produced() if self.shape.runs_whole else not any(one.holds for one in self.workers.values())

    def merge_leftovers(self) -> bool:
        """Tell whether leftovers of the epoch are being made into batches, each for a certain rank."""
        return self.leftovers.for_ranks or any(one.does_rebatch for one in self.workers.values())

    def rows_of_whole_on_the_way(self) -> int:
        """Return how many rows a worker has made of a plan that runs as a whole, and no trainer has; at most."""
        if not self.shape.runs_whole:
            return 0
        batches = self._whole.on_the_way(self.produced.of(self.epoch, self.counts))
        return batches * self.shape.batch_size + self._whole.rest

    def _all_produced(self) -> bool:
        """Tell whether the trainers have all batches of the whole plan."""
        return self.queues.empty_source or self._whole.arrived(self.produced.of(self.epoch, self.counts))

    def _drained(self) -> bool:
        """Tell whether all data of the epoch was either delivered or returned."""
        if not self.closing() or self.leftovers.groups or self.rounds.lost_workers:
            return False
        if self.shape.runs_whole:
            return self._all_produced()
        return all_given(self.workers.values(), self.shape, self.epoch, in_order=self.runs.kept)
