"""Two processes of MPI send each other messages of all sizes, and each checks every byte that comes."""

import random
import sys

from mpi4py import MPI

SIZES = [0, 1, 8, 100, 1024, 4096, 8192, 10000, 65536, 300001, 1 << 20, 5_000_001]
ROUNDS = 3


def content(source, size, number):
    """The bytes of a message, which both ends know."""
    return random.Random(f"{source} {size} {number}").randbytes(size)


def main():
    world = MPI.COMM_WORLD
    rank, size = world.Get_rank(), world.Get_size()
    if size != 2:
        sys.exit(f"{size} processes")
    other = 1 - rank
    came = 0

    def check(data, length, number, what):
        nonlocal came
        if bytes(data) != content(other, length, number):
            sys.exit(f"rank {rank}: {what} of {length} bytes: not what was sent")
        came += length

    for length in SIZES:
        for number in range(ROUNDS):
            # There and back, one after the other.
            place = bytearray(length)
            status = MPI.Status()
            if rank == 0:
                world.Send([content(rank, length, number), MPI.BYTE], other, number)
                world.Recv([place, MPI.BYTE], other, number, status)
            else:
                world.Recv([place, MPI.BYTE], other, number, status)
                world.Send([content(rank, length, number), MPI.BYTE], other, number)
            if status.Get_count(MPI.BYTE) != length:
                sys.exit(f"rank {rank}: {status.Get_count(MPI.BYTE)} bytes of {length}")
            check(place, length, number, "a message")
    # Many at once, both ways, received in another order than they were sent.
    messages = [content(rank, length, 100) for length in SIZES]
    places = [bytearray(length) for length in SIZES]
    requests = [world.Isend([data, MPI.BYTE], other, tag) for tag, data in enumerate(messages)]
    requests += [world.Irecv([place, MPI.BYTE], other, tag) for tag, place in reversed(list(enumerate(places)))]
    MPI.Request.Waitall(requests)
    for length, place in zip(SIZES, places):
        check(place, length, 100, "one of many messages")
    # One-sided: each writes into the window of the other one, and reads it back.
    length = 70000
    memory = MPI.Alloc_mem(length)
    window = MPI.Win.Create(memory, comm=world)
    data = content(rank, length, 200)
    window.Fence()
    window.Put([data, MPI.BYTE], other)
    window.Fence()
    check(memory, length, 200, "a window")
    back = bytearray(length)
    window.Fence()
    window.Get([back, MPI.BYTE], other)
    window.Fence()
    if bytes(back) != data:
        sys.exit(f"rank {rank}: a window read back differs")
    came += length
    window.Free()
    if world.allreduce(rank + 1) != 3:
        sys.exit(f"rank {rank}: a sum")
    print(f"rank {rank}: {came} bytes came, each byte checked", flush=True)


main()
