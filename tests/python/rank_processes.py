"""Processes that are ranks of torch.distributed (gloo), which tests share."""
import contextlib
import datetime
import multiprocessing
import traceback

import torch
import torch.distributed as dist

from spillway.torch import _rounds

MOST_RANKS = 3
TIMEOUT = datetime.timedelta(seconds=20)  # of a rank that waits for another one


def work(rank, most, path, pipe):
    """Runs one function after the other in a group of the first of `most` ranks."""
    torch.set_num_threads(1)
    _rounds._BUCKET_BYTES = 50_000  # a few parameters each
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank,
                            world_size=most, timeout=TIMEOUT)
    while True:
        function, ranks, arguments = pipe.recv()
        group = dist.new_group(range(ranks), timeout=TIMEOUT)
        try:
            pipe.send((True, function(group, rank, *arguments) if rank < ranks else None))
        except BaseException:
            pipe.send((False, traceback.format_exc()))


def answer(pipe):
    """Returns whether a rank has done its function, and what that returned."""
    try:
        return pipe.recv()
    except EOFError:
        return True, "the process has ended"


@contextlib.contextmanager
def ranks_at(path, most=MOST_RANKS):
    """Gives a function that runs one on so many ranks, and returns what each returns. The file is
    where they meet, and `most` the size of the group of all."""
    context = multiprocessing.get_context("forkserver")
    # These take seconds to import; the second is what the first optimizer of a process imports.
    context.set_forkserver_preload(["spillway.torch", "torch._dynamo"])
    pipes, processes = [], []
    for rank in range(most):
        ours, theirs = context.Pipe()
        processes.append(context.Process(target=work, args=(rank, most, path, theirs), daemon=True))
        processes[-1].start()
        theirs.close()
        pipes.append(ours)

    def on_ranks(ranks, function, *arguments):
        for pipe in pipes:
            pipe.send((function, ranks, arguments))
        answers = [answer(pipe) for pipe in pipes]
        for good, result in answers:
            assert good, result
        return [result for _, result in answers[:ranks]]

    yield on_ranks
    for process in processes:
        process.kill()
