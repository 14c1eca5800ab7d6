"""Boots Debian guests on simulated devices and judges what they print."""
