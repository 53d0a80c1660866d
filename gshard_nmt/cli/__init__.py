"""The programs as a user types them: flags, help, messages and exit codes."""

from gshard_nmt.spmd import host_memory

# Later imports may start threads. On a CPU, the training step needs one heap for all threads.
host_memory.use_one_heap()
