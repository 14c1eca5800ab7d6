"""The harness of the suites with virtual machines (tests/linux and tests/bare-metal): processes, QEMU, the server of simulated
devices, a run of a case, and the runner of cases."""
