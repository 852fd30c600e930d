"""Records of real ranks, gathered on rank 0 through the job's store.

The store is not a collective: a rank that explores nothing makes no other rank wait, except in `gather_records`.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import Any

import torch.distributed as dist

from compiler.distributed.ranks import Ranks
from compiler.record import Record

SECONDS = 120.0
"""How long rank 0 waits for the record of another rank."""
_numbers = count()


@dataclass(frozen=True)
class RealRanks:
    """An exploration that every rank of a job makes, told apart by its number."""

    store: Any
    number: int
    rank: int
    world: int

    @classmethod
    def of_process(cls) -> RealRanks | None:
        """The next exploration of this process; None if it belongs to no job of several processes."""
        if not dist.is_available() or not dist.is_initialized() or dist.get_backend() == "fake":
            return None
        if dist.get_world_size() == 1:
            return None
        from compiler.torch_api.process_groups import default_store

        return cls(default_store(), next(_numbers), dist.get_rank(), dist.get_world_size())

    def send(self, record: Record) -> None:
        """Send this rank's record to rank 0."""
        self.store.set(self._key(self.rank), zlib.compress(record.to_json().encode(), 1))

    def gather(self, own: Record, seconds: float = SECONDS) -> Ranks:
        """The records of all ranks. A rank that sends none in time is noted as failed."""
        records, failed = {self.rank: own}, {}
        for rank in range(self.world):
            if rank == self.rank:
                continue
            try:
                self.store.wait([self._key(rank)], timedelta(seconds=seconds))
            except RuntimeError:  # DistStoreError, for a key that does not come in time
                failed[rank] = f"it sent no record within {seconds:g} s: did it make this exploration too?"
                continue
            text = zlib.decompress(self.store.get(self._key(rank)))
            records[rank] = Record.from_json(text).with_trust("trusted")
        mesh = own.place.mesh if own.place else ()
        return Ranks(self.world, dict(sorted(records.items())), mesh, failed=failed, origin=own.origin)

    def _key(self, rank: int) -> str:
        return f"tcompile/{self.number}/{rank}"
