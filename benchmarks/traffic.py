"""What processes send each other when the tokens of a sequence are spread over them.

Every process has an equal part of the tokens and runs the layer forwards and backwards. The
system's count of the bytes that went through its sockets is taken around that, so nothing that
is sent is overlooked. For the longest sequence the outputs and gradients are compared, in double
precision, with those of a process that has all tokens.
"""

import gc
import json
import os
import socket
import struct
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.spawn import spawn

from benchmarks.timing import Options
from kepsvgp.attention import KEPAttention, sequence_parallel
from kepsvgp.attention.base import use_draws
from kepsvgp.attention.kep import Projection
from kepsvgp.errors import UserError

DIM, HEADS, RANK = 128, 8, 10
PROJECTIONS: tuple[Projection, ...] = ("dual", "landmark")
# messages have a frame, and their number may differ by one
SLACK = 1.05
TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that a process sent for one layer, forwards and backwards, by length."""

    name: str
    lengths: tuple[int, ...]
    bytes_sent: tuple[int, ...]
    """Through the sockets of one process, as the system counts them."""
    softmax_bytes: tuple[int, ...]
    """Keys and values of a process, which softmax attention would send forwards, by arithmetic."""
    difference: float
    """Of outputs and gradients from those of one process, relative to the largest, at most."""

    @property
    def passed(self) -> bool:
        """Whether the traffic is independent of the length, and the numbers are right."""
        return max(self.bytes_sent) <= SLACK * min(self.bytes_sent) and self.difference <= TOLERANCE

    def summary(self) -> dict[str, Any]:
        """Everything of interest, ready for JSON."""
        return {**asdict(self), "passed": self.passed}


def measurements(options: Options) -> Iterator[Traffic]:
    """Two processes on this machine, up to 131,072 tokens."""
    yield from measure([64, 512] if options.small else [1024, 16_384, 131_072])


def measure(lengths: Sequence[int], num_processes: int = 2) -> list[Traffic]:
    """What the first of some processes sends for sequences of these lengths."""
    if not Path("/proc/self/fd").is_dir():
        raise UserError("the suite parallel must run on Linux, which counts the bytes of sockets.")
    with tempfile.TemporaryDirectory() as folder:
        spawn(_worker, (num_processes, Path(folder), tuple(lengths)), nprocs=num_processes)
        parts = [json.loads((Path(folder) / str(n)).read_text()) for n in range(num_processes)]
    return [
        Traffic(
            f"KEP, {projection}, one sequence on {num_processes} processes",
            tuple(lengths),
            tuple(parts[0][projection]["bytes"]),
            tuple(2 * (length // num_processes) * DIM * 4 for length in lengths),
            max(part[projection]["difference"] for part in parts),
        )
        for projection in PROJECTIONS
    ]


@contextmanager
def connected(rank: int, num_processes: int, meeting: Path) -> Iterator[None]:
    """Joins processes of this machine through its loopback; they meet at a file."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=num_processes
    )
    try:
        yield
        # none leaves while another may still be receiving
        dist.barrier()
    finally:
        # sharded models hold their group in cycles, and its threads must not outlive it
        gc.collect()
        dist.destroy_process_group()


def _worker(rank: int, num_processes: int, folder: Path, lengths: tuple[int, ...]) -> None:
    torch.set_num_threads(1)
    found = {}
    with connected(rank, num_processes, folder / "meet"):
        for projection in PROJECTIONS:
            torch.manual_seed(0)
            layer = KEPAttention(DIM, HEADS, rank=RANK, projection=projection)
            alone = deepcopy(layer).double()
            sequence_parallel(layer)
            sent = [_bytes_sent(layer, length // num_processes) for length in lengths]
            difference = _difference(layer.double(), alone, rank, num_processes, lengths[-1])
            found[projection] = {"bytes": sent, "difference": difference}
    (folder / str(rank)).write_text(json.dumps(found))


def _bytes_sent(layer: KEPAttention, num_tokens: int) -> int:
    x = torch.randn(1, num_tokens, DIM, requires_grad=True)
    dist.barrier()
    before = socket_bytes()
    layer(x).sum().backward()
    layer.recall()
    return socket_bytes() - before


def _difference(
    layer: KEPAttention, alone: KEPAttention, rank: int, num_processes: int, length: int
) -> float:
    """Largest difference between the part of this process and that of a process on its own."""
    generator = torch.Generator().manual_seed(1)
    x, weight = torch.randn(2, 1, length, DIM, generator=generator, dtype=torch.float64)
    part = slice(rank * (length // num_processes), (rank + 1) * (length // num_processes))
    u = torch.randn(1, HEADS, RANK, RANK, generator=generator, dtype=torch.float64)
    ours = _results(layer, x[:, part], weight[:, part], u)
    for grad in ours[2:]:
        # every process has the loss of its own tokens
        dist.all_reduce(grad)
    theirs = _results(alone, x, weight, u)
    theirs = [theirs[0][:, part], theirs[1][:, part], *theirs[2:]]
    return max(
        float((a - b).abs().max() / b.abs().max()) for a, b in zip(ours, theirs, strict=True)
    )


def _results(layer: KEPAttention, x: Tensor, weight: Tensor, u: Tensor) -> list[Tensor]:
    """The output, and the gradients of the tokens and of all parameters that have one."""
    x = x.clone().requires_grad_()
    layer.zero_grad()
    with use_draws({layer: u}):
        out = layer(x)
    layer.recall()
    (out * weight).sum().backward()
    assert x.grad is not None
    return [out.detach(), x.grad, *(p.grad for p in layer.parameters() if p.grad is not None)]


def socket_bytes() -> int:
    """Bytes that this process has sent through its open TCP sockets, by the system's count.

    What was sent again counts once.
    """
    total = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            if not entry.readlink().name.startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(entry.name))) as copy:
                info = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        except OSError:
            # closed in the meantime, or no TCP socket
            continue
        # tcpi_bytes_sent and tcpi_bytes_retrans of Linux's struct tcp_info; a busy machine
        # sends some of it twice
        if len(info) >= 216:
            sent, again = struct.unpack_from("QQ", info, 200)
            total += sent - again
    return total
