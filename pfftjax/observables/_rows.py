"""Rows of NumPy's arrays between ranks, outside of programs."""

import dataclasses

import numpy as np
from mpi4py import MPI

from pfftjax.pencils.internal import block


@dataclasses.dataclass(frozen=True)
class Mail:
    """The way of rows to the rank that each is addressed to, and of answers back.

    Attributes:
        comm: the ranks.
        order: the rows by rank.
        outgoing: how many go to each rank.
        incoming: how many come from each.

    """

    comm: MPI.Intracomm
    order: np.ndarray
    outgoing: np.ndarray
    incoming: np.ndarray

    @classmethod
    def to(cls, ranks: np.ndarray, comm: MPI.Intracomm) -> "Mail":
        """Find out who sends how many rows to whom: row i goes to ``ranks[i]``. Collective."""
        order = np.argsort(ranks, kind="stable")
        outgoing = np.bincount(ranks, minlength=comm.size).astype(np.int64)
        incoming = np.empty_like(outgoing)
        comm.Alltoall(outgoing, incoming)
        return cls(comm, order, outgoing, incoming)

    @property
    def count(self) -> int:
        """How many rows arrive here."""
        return int(self.incoming.sum())

    def send(self, rows: np.ndarray) -> np.ndarray:
        """The rows that arrive here, those from rank 0 first. Collective."""
        return _exchanged(rows[self.order], self.outgoing, self.incoming, self.comm)

    def send_back(self, answers: np.ndarray) -> np.ndarray:
        """One row for each that arrived, to where that came from and in the order there."""
        arrived = _exchanged(answers, self.incoming, self.outgoing, self.comm)
        result = np.empty_like(arrived)
        result[self.order] = arrived
        return result


def _exchanged(
    rows: np.ndarray, outgoing: np.ndarray, incoming: np.ndarray, comm: MPI.Intracomm
) -> np.ndarray:
    result = np.empty((int(incoming.sum()), *rows.shape[1:]), rows.dtype)
    width = rows.dtype.itemsize * int(np.prod(rows.shape[1:]))
    # Counts are of rows, which fit into 32 bits where bytes do not.
    row = MPI.BYTE.Create_contiguous(width).Commit()
    try:
        comm.Alltoallv(
            [np.ascontiguousarray(rows), outgoing, _begins(outgoing), row],
            [result, incoming, _begins(incoming), row],
        )
    finally:
        row.Free()
    return result


def _begins(counts: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts[:-1])])


def in_order(rows: np.ndarray, key: np.ndarray, comm: MPI.Intracomm) -> np.ndarray:
    """Rows of all ranks, sorted by key over the ranks: an equal share each. Collective.

    Args:
        rows: this rank's, of any dtype.
        key: of each row, strings of bytes (``S``) of one length, which compare as such.
        comm: the ranks.

    """
    order = np.argsort(key, kind="stable")
    rows, key = rows[order], key[order]
    # As many samples from each rank as there are ranks cut the whole well enough.
    places = np.arange(comm.size) * len(key) // comm.size
    samples = np.sort(np.concatenate(comm.allgather(key[places] if len(key) else key)))
    cuts = samples[np.arange(1, comm.size) * len(samples) // comm.size] if len(samples) else key
    mail = Mail.to(np.searchsorted(cuts, key, side="right"), comm)
    rows, key = mail.send(rows), mail.send(key)
    rows = rows[np.argsort(key, kind="stable")]
    # All are in order now, and become equal shares.
    total, before = comm.allreduce(len(rows)), comm.exscan(len(rows)) or 0
    ends = [sum(block(total, comm.size, rank)) for rank in range(comm.size)]
    ranks = np.searchsorted(ends, before + np.arange(len(rows)), side="right")
    return Mail.to(ranks, comm).send(rows)
