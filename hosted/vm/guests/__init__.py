"""Guests with simulated devices: Debian packages, an initial file system made of them, QEMU, and the server of the devices."""
