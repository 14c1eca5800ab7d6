//! A queue pair with receives of its own making.
//~ error: `Mine` is not where the receives of a queue pair come from
//~ note: it is a `RecvQueue`, `SharedReceives` or `NoReceives`
use bareverbs::backend::Provider;
use bareverbs::{QueuePair, Verbs};

struct Mine;

fn reset<'s, P: Provider>(verbs: &mut Verbs<'s, P>, qp: &mut QueuePair<'s, P, Mine>) {
    let _ = verbs.reset_qp(qp);
}

fn main() {}
