"""Boots Debian guests on the simulated device and judges what they say."""
