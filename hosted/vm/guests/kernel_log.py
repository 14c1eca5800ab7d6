"""What the log of a guest's kernel is searched for."""

import re

#: The drivers' own warnings, and the kernel's reports of bugs in any of them.
SUSPECT = re.compile(
    r"mlx5|infiniband|ib_|rdma|iser|iscsi|nvme|I/O error"
    r"|WARNING|BUG|Oops|Call Trace|RIP:|hung task|soft lockup|general protection"
)

#: What the kernel says of programs that it ended, besides its warnings.
OF_PROGRAMS = re.compile(r"segfault|traps: |Out of memory|oom-kill|Initramfs unpacking failed")
