//! What of a run is the same in its repetition.

use bareverbs::{Completion, QpHandle};

/// Returns a completion as it is in every run of the same program with the same seed: its queue pair is named by its index alone.
///
/// A [`Handle`](bareverbs::Handle) has two numbers, an index and a generation. Generations of two `Verbs` of one process never overlap, so
/// that a handle of one is stale in the other; so they are others in the next run. All else is the same from run to run: completions apart from
/// that, [`World::now`](crate::World::now), [`World::wire_stats`](crate::World::wire_stats), each byte on the wire ([`World::capture`](crate::World::capture)).
///
/// ```
/// use bareverbs::{Completion, RecvWr, SendWr};
/// use bareverbs_testing::{Faults, Probability, TestResult, comparable, connect, pair};
///
/// let run = |seed| -> TestResult<Vec<Completion>> {
///     let [mut a, mut b] = pair(Faults::none().loss(Probability::per_mille(200)).seed(seed))?;
///     let [mut qa, mut qb] = connect(&mut a, &mut b)?;
///     qb.qp.recv.post(&RecvWr { wr_id: 2, sges: &[] })?;
///     qa.qp.send.post(&SendWr::send(b"").id(1))?;
///     Ok([qa.wait()?, qb.wait()?].map(comparable).to_vec())
/// };
/// assert_eq!(run(7)?, run(7)?);
/// # TestResult::Ok(())
/// ```
#[must_use]
pub fn comparable(mut done: Completion) -> Completion {
    // The number of the handle with this index and the first generation: an index is in the upper half, counted from 1.
    if done.qp != QpHandle::NONE {
        done.qp = QpHandle::from_raw((u64::from(done.qp.index()) + 1) << 32);
    }
    done
}
