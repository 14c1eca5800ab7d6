"""Boots firmware programs on virtual machines with a simulated ConnectX and judges what they print."""
