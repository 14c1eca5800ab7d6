"""What the suites of virtual machines share (tests/linux and tests/bare-metal): processes, QEMU, the server of simulated devices, a
case being run, and the runner of cases."""
