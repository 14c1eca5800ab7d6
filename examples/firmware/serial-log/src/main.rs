//! Reads the serial line of a firmware program on the host, and prints its text and its defmt log as lines.
fn main() {}
