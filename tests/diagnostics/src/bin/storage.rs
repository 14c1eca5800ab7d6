//! Tables with a capacity that there is not.
//~ error: `pairs: 1` begins with no capacity: write pds, mrs, mws, cqs, qps or srqs, a colon, a number, and a comma
use bareverbs::storage;

type Tables = storage!['static, (); pds: 1, pairs: 1];

fn main() {}
