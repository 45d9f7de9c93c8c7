#!/usr/bin/env python3
"""Runs a command as several processes, a rank each, on this machine.

  processes.py N -- COMMAND...
      Passes rank 0's output on, and all errors. Fails unless all processes end with 0
      and the others print nothing.
  processes.py N --kill RANK -- COMMAND...
      Kills a process (SIGKILL) once rank 0 prints. Fails unless all others end by
      themselves within 10 s, with an error.

Only the standard library.
"""

import os
import signal
import socket
import subprocess
import sys
import time

LIMIT = 10  # Seconds, in which the death of one has ended all.


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start(ranks, command):
    port = str(free_port())
    processes = []
    for rank in range(ranks):
        environment = dict(
            os.environ,
            MLA_RANK=str(rank),
            MLA_WORLD_SIZE=str(ranks),
            MLA_MASTER_ADDR="127.0.0.1",
            MLA_MASTER_PORT=port,
        )
        processes.append(
            subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        )
    return processes


def main():
    split = sys.argv.index("--")
    options, command = sys.argv[1:split], sys.argv[split + 1 :]
    ranks = int(options[0])
    victim = int(options[2]) if options[1:2] == ["--kill"] else None
    processes = start(ranks, command)
    if victim is not None:
        first = processes[0].stdout.read(1)
        assert first, processes[0].stderr.read().decode()
        processes[victim].send_signal(signal.SIGKILL)
        begin = time.monotonic()
    failed = False
    for rank, process in enumerate(processes):
        try:
            out, err = process.communicate(
                timeout=None if victim is None else LIMIT
            )
        except subprocess.TimeoutExpired:
            for p in processes:
                p.kill()
            sys.exit(f"rank {rank} has not ended {LIMIT} s after rank {victim}")
        sys.stderr.write(err.decode())
        if victim is None:
            if rank == 0:
                sys.stdout.write(out.decode())
            elif out:
                failed = True
                sys.stderr.write(f"rank {rank} printed {out[:200]}\n")
            if process.returncode != 0:
                failed = True
                sys.stderr.write(f"rank {rank} ended with {process.returncode}\n")
        elif rank != victim and process.returncode <= 0:
            failed = True
            sys.stderr.write(f"rank {rank} ended with {process.returncode}\n")
    if victim is not None:
        print(f"all ended {time.monotonic() - begin:.2f} s after rank {victim}")
    sys.exit(failed)


main()
