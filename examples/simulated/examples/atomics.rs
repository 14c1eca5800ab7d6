//! Atomics: a counter and a lock in the memory of another host, whose processor has no part in it.

use std::error::Error;

use bareverbs::{Access, DmaBuffer, SendWr};
use bareverbs_testing::{Faults, connect, nodes};

fn main() -> Result<(), Box<dyn Error>> {
    let [mut a, mut b, mut server] = nodes(Faults::none())?;
    let [mut end_a, _from_a] = connect(&mut a, &mut server)?;
    let [mut end_b, _from_b] = connect(&mut b, &mut server)?;
    // Atomics write into it: LOCAL_WRITE too. A counter at byte 0, a lock at byte 8.
    let shared = server.register(16, Access::LOCAL_WRITE | Access::REMOTE_ATOMIC)?;
    let (counter, lock) = (shared.remote(0), shared.remote(8));
    // Each request brings the old value into 8 bytes of a region here.
    let olds = [a.register(8, Access::LOCAL_WRITE)?, b.register(8, Access::LOCAL_WRITE)?];

    // Two hosts count; each learns which number was its own.
    let mut numbers = Vec::new();
    for _ in 0..3 {
        for (end, old) in [(&mut end_a, &olds[0]), (&mut end_b, &olds[1])] {
            end.qp.send.post(&SendWr::fetch_add(counter, old.sge(0, 8), 1))?;
            end.wait()?.result()?;
            let mut bytes = [0; 8];
            old.read(0, &mut bytes)?;
            numbers.push(u64::from_ne_bytes(bytes));
        }
    }
    assert_eq!(numbers, [0, 1, 2, 3, 4, 5]);

    // A lock is 0, or the number of the host that has it: who finds 0 gets it.
    let mut winners = Vec::new();
    for (end, old, host) in [(&mut end_a, &olds[0], 1), (&mut end_b, &olds[1], 2)] {
        end.qp.send.post(&SendWr::compare_swap(lock, old.sge(0, 8), 0, host))?;
        end.wait()?.result()?;
        let mut bytes = [0; 8];
        old.read(0, &mut bytes)?;
        if u64::from_ne_bytes(bytes) == 0 {
            winners.push(host);
        }
    }
    let mut bytes = [0; 8];
    shared.read(8, &mut bytes)?;
    let owner = u64::from_ne_bytes(bytes);
    assert_eq!(winners, [owner]);
    println!("counted to {} from two hosts; host {owner} has the lock", numbers.len());
    Ok(())
}
