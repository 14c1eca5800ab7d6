//! The operations of the data path that are measured. Each runs alone and in batches, with constant inputs and with inputs that
//! the compiler cannot know.

use std::cell::Cell;
use std::hint::black_box;

use bareverbs::{Access, Binding, KeyTag, Payload, RecvWr, SendBatch, SendFlags, SendOp, SendQueue, SendWr, Sge};

use crate::by_hand::SIGNALED as SIGNALED_BY_HAND;
use crate::fixture::{Driver, Fixture};

/// Requests of a batch.
pub(crate) const BATCH: usize = 32;

/// What an operation uses up.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    /// Sends of this many WQE basic blocks each.
    Send {
        /// Blocks of a request.
        blocks: u32,
    },
    /// Sends of a queue pair for datagrams, of this many blocks each.
    Datagram {
        /// Blocks of a request.
        blocks: u32,
    },
    /// Binds and invalidations of windows, at most one in flight for each window.
    Window {
        /// Blocks of a request.
        blocks: u32,
    },
    /// Receives.
    Recv,
    /// Completions, which are there before.
    Poll {
        /// Whether of receives.
        recv: bool,
    },
    /// Requests of the queue pair that is driven by hand, of this many blocks each.
    ByHand {
        /// Blocks of a request.
        blocks: u32,
    },
    /// Completions of that queue pair, which are there before.
    PollByHand,
}

/// One operation.
pub(crate) struct Operation {
    /// Name, as tables and the file of expected instructions have it.
    pub(crate) name: &'static str,
    /// Name of its function, as a profile has it.
    pub(crate) symbol: &'static str,
    /// What it uses up.
    pub(crate) kind: Kind,
    /// Requests or completions of one run.
    pub(crate) requests: u32,
    /// Performs the operation the given number of times.
    pub(crate) run: fn(&mut Fixture, u64),
}

/// A function for each operation, so that a profile distinguishes them, and the list of all.
macro_rules! operations {
    ($($name:ident = $label:literal, $kind:expr, $requests:expr, |$fixture:ident, $runs:ident| $body:block;)+) => {
        $(
            #[doc = $label]
            #[inline(never)]
            pub(crate) fn $name($fixture: &mut Fixture, $runs: u64) $body
        )+

        /// Every operation.
        pub(crate) const OPERATIONS: &[Operation] = &[
            $(Operation { name: $label, symbol: stringify!($name), kind: $kind, requests: $requests as u32, run: $name },)+
        ];
    };
}

const ONE: Kind = Kind::Send { blocks: 1 };
const HAND: Kind = Kind::ByHand { blocks: 1 };
const TWO: Kind = Kind::Send { blocks: 2 };
/// Control, address, and what is sent.
const DATAGRAM: Kind = Kind::Datagram { blocks: 2 };
const SIGNALED: SendFlags = SendFlags::SIGNALED;
const INLINE: [u8; 32] = [0x5a; 32];

/// Posts a request that the compiler knows nothing of.
fn opaque(fixture: &mut Fixture, runs: u64, op: SendOp<'_>) {
    let wr = SendWr { wr_id: 7, flags: SIGNALED, op };
    for _ in 0..runs {
        fixture.qp.send.post(black_box(&wr)).expect("post");
    }
}

/// Posts a list of requests that the compiler knows nothing of.
fn opaque_list(fixture: &mut Fixture, runs: u64, op: SendOp<'_>) {
    let list = [SendWr { wr_id: 7, flags: SIGNALED, op }; BATCH];
    for _ in 0..runs {
        fixture.qp.send.post_list(black_box(&list)).expect("post");
    }
}

/// Makes a typed call with its own doorbell. The SGE is made afresh each time, as programs do.
#[inline(always)]
fn typed(fixture: &mut Fixture, runs: u64, post: impl Fn(&mut SendQueue<'static, Driver>, u64, Sge)) {
    let sge = fixture.sge;
    for _ in 0..runs {
        post(&mut fixture.qp.send, 7, Sge { addr: black_box(sge.addr), ..sge });
    }
}

/// Makes typed calls with one doorbell for all.
#[inline(always)]
fn typed_batch(fixture: &mut Fixture, runs: u64, post: impl Fn(&mut SendBatch<'_, Driver>, u64, Sge)) {
    let sge = fixture.sge;
    for _ in 0..runs {
        let mut batch = fixture.qp.send.batch();
        for n in 0..BATCH as u64 {
            post(&mut batch, n, Sge { addr: black_box(sge.addr), ..sge });
        }
    }
}

/// Returns what a window is bound to.
fn binding(fixture: &Fixture) -> Binding {
    Binding { mr: fixture.mr, addr: fixture.sge.addr, length: 64, access: Access::REMOTE_WRITE }
}

operations! {
    write_fixed = "WRITE, 1 SGE", ONE, 1, |fixture, runs| {
        let (sge, remote) = (fixture.sge, fixture.remote);
        for _ in 0..runs {
            // Made afresh each time, as programs do.
            let sges = [Sge { addr: black_box(sge.addr), ..sge }];
            let op = SendOp::Write { payload: Payload::Sges(&sges), remote };
            fixture.qp.send.post(&SendWr { wr_id: 7, flags: SIGNALED, op }).expect("post");
        }
    };
    write_typed = "WRITE, 1 SGE, typed call", ONE, 1, |fixture, runs| {
        let (sge, remote) = (fixture.sge, fixture.remote);
        for _ in 0..runs {
            let sges = [Sge { addr: black_box(sge.addr), ..sge }];
            fixture.qp.send.post(&SendWr::write(remote, &sges).id(7).signaled()).expect("post");
        }
    };
    write_opaque = "WRITE, 1 SGE, opaque", ONE, 1, |fixture, runs| {
        let (sges, remote) = ([fixture.sge], fixture.remote);
        opaque(fixture, runs, SendOp::Write { payload: Payload::Sges(&sges), remote });
    };
    write_held = "WRITE, 1 SGE, held batch", ONE, 1, |fixture, runs| {
        let (sge, remote) = (fixture.sge, fixture.remote);
        let mut batch = fixture.qp.send.batch();
        for _ in 0..runs {
            let sges = [Sge { addr: black_box(sge.addr), ..sge }];
            batch.post(&SendWr::write(remote, &sges).id(7).signaled()).expect("post");
            batch.ring();
        }
    };
    write_2_fixed = "WRITE, 2 SGEs", ONE, 1, |fixture, runs| {
        let (sge, remote) = (fixture.sge, fixture.remote);
        for _ in 0..runs {
            let sges = [Sge { addr: black_box(sge.addr), ..sge }, Sge { addr: black_box(sge.addr + 512), ..sge }];
            let op = SendOp::Write { payload: Payload::Sges(&sges), remote };
            fixture.qp.send.post(&SendWr { wr_id: 7, flags: SIGNALED, op }).expect("post");
        }
    };
    write_2_typed = "WRITE, 2 SGEs, typed call", ONE, 1, |fixture, runs| {
        let (sge, remote) = (fixture.sge, fixture.remote);
        for _ in 0..runs {
            let sges = [Sge { addr: black_box(sge.addr), ..sge }, Sge { addr: black_box(sge.addr + 512), ..sge }];
            fixture.qp.send.post(&SendWr::write(remote, &sges).id(7).signaled()).expect("post");
        }
    };
    write_2_opaque = "WRITE, 2 SGEs, opaque", ONE, 1, |fixture, runs| {
        let (sges, remote) = ([fixture.sge; 2], fixture.remote);
        opaque(fixture, runs, SendOp::Write { payload: Payload::Sges(&sges), remote });
    };
    write_3_opaque = "WRITE, 3 SGEs, opaque", TWO, 1, |fixture, runs| {
        let (sges, remote) = ([fixture.sge; 3], fixture.remote);
        opaque(fixture, runs, SendOp::Write { payload: Payload::Sges(&sges), remote });
    };
    write_displaced = "WRITE, 1 SGE, displaced region, opaque", ONE, 1, |fixture, runs| {
        let (sges, remote) = ([fixture.displaced], fixture.remote);
        opaque(fixture, runs, SendOp::Write { payload: Payload::Sges(&sges), remote });
    };
    write_inline_fixed = "WRITE, 32 bytes inline", TWO, 1, |fixture, runs| {
        let remote = fixture.remote;
        for _ in 0..runs {
            let bytes: &[u8; 32] = black_box(&INLINE);
            let op = SendOp::Write { payload: Payload::Inline(bytes), remote };
            fixture.qp.send.post(&SendWr { wr_id: 7, flags: SIGNALED, op }).expect("post");
        }
    };
    write_inline_opaque = "WRITE, 32 bytes inline, opaque", TWO, 1, |fixture, runs| {
        let remote = fixture.remote;
        opaque(fixture, runs, SendOp::Write { payload: Payload::Inline(&INLINE), remote });
    };
    write_imm_fixed = "WRITE_WITH_IMM, 1 SGE, typed call", ONE, 1, |fixture, runs| {
        let (sge, remote) = (fixture.sge, fixture.remote);
        for _ in 0..runs {
            let sges = [Sge { addr: black_box(sge.addr), ..sge }];
            fixture.qp.send.post(&SendWr::write_with_imm(remote, &sges, [1; 4]).id(7).signaled()).expect("post");
        }
    };
    write_imm_opaque = "WRITE_WITH_IMM, 1 SGE, opaque", ONE, 1, |fixture, runs| {
        let (sges, remote) = ([fixture.sge], fixture.remote);
        opaque(fixture, runs, SendOp::WriteWithImm { payload: Payload::Sges(&sges), remote, imm: [1; 4] });
    };
    send_fixed = "SEND, 1 SGE", ONE, 1, |fixture, runs| {
        let sge = fixture.sge;
        for _ in 0..runs {
            let sges = [Sge { addr: black_box(sge.addr), ..sge }];
            let op = SendOp::Send { payload: Payload::Sges(&sges) };
            fixture.qp.send.post(&SendWr { wr_id: 7, flags: SIGNALED, op }).expect("post");
        }
    };
    send_opaque = "SEND, 1 SGE, opaque", ONE, 1, |fixture, runs| {
        let sges = [fixture.sge];
        opaque(fixture, runs, SendOp::Send { payload: Payload::Sges(&sges) });
    };
    send_imm_opaque = "SEND_WITH_IMM, 1 SGE, opaque", ONE, 1, |fixture, runs| {
        let sges = [fixture.sge];
        opaque(fixture, runs, SendOp::SendWithImm { payload: Payload::Sges(&sges), imm: [1; 4] });
    };
    send_inline_opaque = "SEND, 24 bytes inline, opaque", ONE, 1, |fixture, runs| {
        opaque(fixture, runs, SendOp::Send { payload: Payload::Inline(&INLINE[..24]) });
    };
    read_fixed = "READ, 1 SGE, typed call", ONE, 1, |fixture, runs| {
        let (sge, remote) = (fixture.sge, fixture.remote);
        for _ in 0..runs {
            let sges = [Sge { addr: black_box(sge.addr), ..sge }];
            fixture.qp.send.post(&SendWr::read(remote, &sges).id(7).signaled()).expect("post");
        }
    };
    read_opaque = "READ, 1 SGE, opaque", ONE, 1, |fixture, runs| {
        let (sges, remote) = ([fixture.sge], fixture.remote);
        opaque(fixture, runs, SendOp::Read { sges: &sges, remote });
    };
    compare_swap_opaque = "compare-and-swap, opaque", ONE, 1, |fixture, runs| {
        let (sge, remote) = (Sge { length: 8, ..fixture.sge }, fixture.remote);
        opaque(fixture, runs, SendOp::CompareSwap { sge, remote, compare: 1, swap: 2 });
    };
    fetch_add_opaque = "fetch-and-add, opaque", ONE, 1, |fixture, runs| {
        let (sge, remote) = (Sge { length: 8, ..fixture.sge }, fixture.remote);
        opaque(fixture, runs, SendOp::FetchAdd { sge, remote, add: 1 });
    };
    write_batch_typed = "WRITE, batch of 32, typed calls", ONE, BATCH, |fixture, runs| {
        let (sge, remote) = (fixture.sge, fixture.remote);
        for _ in 0..runs {
            let mut batch = fixture.qp.send.batch();
            for n in 0..BATCH as u64 {
                let sges = [Sge { addr: black_box(sge.addr), ..sge }];
                batch.post(&SendWr::write(remote, &sges).id(n).signaled()).expect("post");
            }
        }
    };
    write_batch_array = "WRITE, batch of 32, SGEs from an array", ONE, BATCH, |fixture, runs| {
        let list = [(7_u64, fixture.remote, [fixture.sge]); BATCH];
        for _ in 0..runs {
            let mut batch = fixture.qp.send.batch();
            for (wr_id, remote, sges) in black_box(&list) {
                batch.post(&SendWr::write(*remote, sges).id(*wr_id).signaled()).expect("post");
            }
        }
    };
    write_batch_opaque = "WRITE, batch of 32 from an array", ONE, BATCH, |fixture, runs| {
        let (sges, remote) = ([fixture.sge], fixture.remote);
        opaque_list(fixture, runs, SendOp::Write { payload: Payload::Sges(&sges), remote });
    };
    send_batch_opaque = "SEND, batch of 32 from an array", ONE, BATCH, |fixture, runs| {
        let sges = [fixture.sge];
        opaque_list(fixture, runs, SendOp::Send { payload: Payload::Sges(&sges) });
    };
    write_inline_typed = "WRITE, 32 bytes inline, typed call", TWO, 1, |fixture, runs| {
        let remote = fixture.remote;
        typed(fixture, runs, |batch, n, _| batch.post(&SendWr::write(remote, black_box(&INLINE)).id(n).signaled()).expect("post"));
    };
    write_inline_batch_typed = "WRITE, 32 bytes inline, batch of 32, typed calls", TWO, BATCH, |fixture, runs| {
        let remote = fixture.remote;
        typed_batch(fixture, runs, |batch, n, _| batch.post(&SendWr::write(remote, black_box(&INLINE)).id(n).signaled()).expect("post"));
    };
    write_inline_batch_opaque = "WRITE, 32 bytes inline, batch of 32 from an array", TWO, BATCH, |fixture, runs| {
        let remote = fixture.remote;
        opaque_list(fixture, runs, SendOp::Write { payload: Payload::Inline(&INLINE), remote });
    };
    write_imm_batch_typed = "WRITE_WITH_IMM, batch of 32, typed calls", ONE, BATCH, |fixture, runs| {
        let remote = fixture.remote;
        typed_batch(fixture, runs, |batch, n, sge| batch.post(&SendWr::write_with_imm(remote, &[sge], [1; 4]).id(n).signaled()).expect("post"));
    };
    write_imm_batch_opaque = "WRITE_WITH_IMM, batch of 32 from an array", ONE, BATCH, |fixture, runs| {
        let remote = fixture.remote;
        let sge = fixture.sge;
        opaque_list(fixture, runs, SendOp::WriteWithImm { payload: Payload::Sges(&[sge]), remote, imm: [1; 4] });
    };
    send_typed = "SEND, 1 SGE, typed call", ONE, 1, |fixture, runs| {
        typed(fixture, runs, |batch, n, sge| batch.post(&SendWr::send(&[sge]).id(n).signaled()).expect("post"));
    };
    send_batch_typed = "SEND, batch of 32, typed calls", ONE, BATCH, |fixture, runs| {
        typed_batch(fixture, runs, |batch, n, sge| batch.post(&SendWr::send(&[sge]).id(n).signaled()).expect("post"));
    };
    send_inline_typed = "SEND, 24 bytes inline, typed call", ONE, 1, |fixture, runs| {
        typed(fixture, runs, |batch, n, _| batch.post(&SendWr::send(black_box(&INLINE[..24])).id(n).signaled()).expect("post"));
    };
    send_inline_batch_typed = "SEND, 24 bytes inline, batch of 32, typed calls", ONE, BATCH, |fixture, runs| {
        typed_batch(fixture, runs, |batch, n, _| batch.post(&SendWr::send(black_box(&INLINE[..24])).id(n).signaled()).expect("post"));
    };
    send_inline_batch_opaque = "SEND, 24 bytes inline, batch of 32 from an array", ONE, BATCH, |fixture, runs| {
        opaque_list(fixture, runs, SendOp::Send { payload: Payload::Inline(&INLINE[..24]) });
    };
    send_imm_typed = "SEND_WITH_IMM, 1 SGE, typed call", ONE, 1, |fixture, runs| {
        typed(fixture, runs, |batch, n, sge| batch.post(&SendWr::send_with_imm(&[sge], [1; 4]).id(n).signaled()).expect("post"));
    };
    send_imm_batch_typed = "SEND_WITH_IMM, batch of 32, typed calls", ONE, BATCH, |fixture, runs| {
        typed_batch(fixture, runs, |batch, n, sge| batch.post(&SendWr::send_with_imm(&[sge], [1; 4]).id(n).signaled()).expect("post"));
    };
    send_imm_batch_opaque = "SEND_WITH_IMM, batch of 32 from an array", ONE, BATCH, |fixture, runs| {
        let sge = fixture.sge;
        opaque_list(fixture, runs, SendOp::SendWithImm { payload: Payload::Sges(&[sge]), imm: [1; 4] });
    };
    send_inv_typed = "SEND_WITH_INV, 1 SGE, typed call", ONE, 1, |fixture, runs| {
        let rkey = fixture.remote.rkey;
        typed(fixture, runs, |batch, n, sge| batch.post(&SendWr::send_with_inv(&[sge], rkey).id(n).signaled()).expect("post"));
    };
    send_inv_opaque = "SEND_WITH_INV, 1 SGE, opaque", ONE, 1, |fixture, runs| {
        let rkey = fixture.remote.rkey;
        let sge = fixture.sge;
        opaque(fixture, runs, SendOp::SendWithInv { payload: Payload::Sges(&[sge]), rkey });
    };
    send_inv_batch_typed = "SEND_WITH_INV, batch of 32, typed calls", ONE, BATCH, |fixture, runs| {
        let rkey = fixture.remote.rkey;
        typed_batch(fixture, runs, |batch, n, sge| batch.post(&SendWr::send_with_inv(&[sge], rkey).id(n).signaled()).expect("post"));
    };
    send_inv_batch_opaque = "SEND_WITH_INV, batch of 32 from an array", ONE, BATCH, |fixture, runs| {
        let rkey = fixture.remote.rkey;
        let sge = fixture.sge;
        opaque_list(fixture, runs, SendOp::SendWithInv { payload: Payload::Sges(&[sge]), rkey });
    };
    read_batch_typed = "READ, batch of 32, typed calls", ONE, BATCH, |fixture, runs| {
        let remote = fixture.remote;
        typed_batch(fixture, runs, |batch, n, sge| batch.post(&SendWr::read(remote, &[sge]).id(n).signaled()).expect("post"));
    };
    read_batch_opaque = "READ, batch of 32 from an array", ONE, BATCH, |fixture, runs| {
        let remote = fixture.remote;
        let sge = fixture.sge;
        opaque_list(fixture, runs, SendOp::Read { sges: &[sge], remote });
    };
    compare_swap_typed = "compare-and-swap, typed call", ONE, 1, |fixture, runs| {
        let remote = fixture.remote;
        typed(fixture, runs, |batch, n, sge| batch.post(&SendWr::compare_swap(remote, Sge { length: 8, ..sge }, 1, 2).id(n).signaled()).expect("post"));
    };
    compare_swap_batch_typed = "compare-and-swap, batch of 32, typed calls", ONE, BATCH, |fixture, runs| {
        let remote = fixture.remote;
        typed_batch(fixture, runs, |batch, n, sge| batch.post(&SendWr::compare_swap(remote, Sge { length: 8, ..sge }, 1, 2).id(n).signaled()).expect("post"));
    };
    compare_swap_batch_opaque = "compare-and-swap, batch of 32 from an array", ONE, BATCH, |fixture, runs| {
        let remote = fixture.remote;
        let sge = fixture.sge;
        opaque_list(fixture, runs, SendOp::CompareSwap { sge: Sge { length: 8, ..sge }, remote, compare: 1, swap: 2 });
    };
    fetch_add_typed = "fetch-and-add, typed call", ONE, 1, |fixture, runs| {
        let remote = fixture.remote;
        typed(fixture, runs, |batch, n, sge| batch.post(&SendWr::fetch_add(remote, Sge { length: 8, ..sge }, 1).id(n).signaled()).expect("post"));
    };
    fetch_add_batch_typed = "fetch-and-add, batch of 32, typed calls", ONE, BATCH, |fixture, runs| {
        let remote = fixture.remote;
        typed_batch(fixture, runs, |batch, n, sge| batch.post(&SendWr::fetch_add(remote, Sge { length: 8, ..sge }, 1).id(n).signaled()).expect("post"));
    };
    fetch_add_batch_opaque = "fetch-and-add, batch of 32 from an array", ONE, BATCH, |fixture, runs| {
        let remote = fixture.remote;
        let sge = fixture.sge;
        opaque_list(fixture, runs, SendOp::FetchAdd { sge: Sge { length: 8, ..sge }, remote, add: 1 });
    };
    bind_typed = "BIND_MW, type 2, typed call", Kind::Window { blocks: 3 }, 1, |fixture, runs| {
        let (mw, info, tag) = (fixture.mw, binding(fixture), Cell::new(fixture.window_key().tag()));
        typed(fixture, runs, |batch, n, _| {
            tag.set(tag.get().next());
            batch.post(&SendWr::bind_mw(mw, tag.get(), info).id(n).signaled()).expect("post");
        });
    };
    bind_opaque = "BIND_MW, type 2, opaque", Kind::Window { blocks: 3 }, 1, |fixture, runs| {
        let (mw, info) = (fixture.mw, binding(fixture));
        let mut wr = SendWr { wr_id: 7, flags: SIGNALED, op: SendOp::BindMw { mw, tag: fixture.window_key().tag(), binding: info } };
        for _ in 0..runs {
            if let SendOp::BindMw { tag, .. } = &mut wr.op {
                *tag = tag.next();
            }
            fixture.qp.send.post(black_box(&wr)).expect("post");
        }
    };
    bind_batch_typed = "BIND_MW, type 2, batch of 32, typed calls", Kind::Window { blocks: 3 }, BATCH, |fixture, runs| {
        let (mw, info, last) = (fixture.mw, binding(fixture), fixture.window_key().tag());
        let tag = |n| KeyTag(last.0.wrapping_add(n as u8).wrapping_add(1));
        typed_batch(fixture, runs, |batch, n, _| batch.post(&SendWr::bind_mw(mw, tag(n), info).id(n).signaled()).expect("post"));
    };
    bind_batch_opaque = "BIND_MW, type 2, batch of 32 from an array", Kind::Window { blocks: 3 }, BATCH, |fixture, runs| {
        let (mw, info) = (fixture.mw, binding(fixture));
        // Each with another key: one is not bound again with the key that it has.
        let last = fixture.window_key().tag();
        let tag = |n| KeyTag(last.0.wrapping_add(n as u8).wrapping_add(1));
        let wr = |n| SendWr { wr_id: 7, flags: SIGNALED, op: SendOp::BindMw { mw, tag: tag(n), binding: info } };
        let list: [SendWr<'_>; BATCH] = core::array::from_fn(wr);
        for _ in 0..runs {
            fixture.qp.send.post_list(black_box(&list)).expect("post");
        }
    };
    local_inv_typed = "LOCAL_INV, typed call", Kind::Window { blocks: 2 }, 1, |fixture, runs| {
        let rkey = fixture.window_key();
        typed(fixture, runs, |batch, n, _| batch.post(&SendWr::local_inv(rkey).id(n).signaled()).expect("post"));
    };
    local_inv_opaque = "LOCAL_INV, opaque", Kind::Window { blocks: 2 }, 1, |fixture, runs| {
        let rkey = fixture.window_key();
        opaque(fixture, runs, SendOp::LocalInv { rkey });
    };
    local_inv_batch_typed = "LOCAL_INV, batch of 32, typed calls", Kind::Window { blocks: 2 }, BATCH, |fixture, runs| {
        let rkey = fixture.window_key();
        typed_batch(fixture, runs, |batch, n, _| batch.post(&SendWr::local_inv(rkey).id(n).signaled()).expect("post"));
    };
    local_inv_batch_opaque = "LOCAL_INV, batch of 32 from an array", Kind::Window { blocks: 2 }, BATCH, |fixture, runs| {
        let rkey = fixture.window_key();
        opaque_list(fixture, runs, SendOp::LocalInv { rkey });
    };
    datagram_typed = "datagram SEND, 1 SGE, typed call", DATAGRAM, 1, |fixture, runs| {
        let to = fixture.to;
        typed(fixture, runs, |send, n, sge| send.post(&SendWr::send_to(&to, &[sge]).id(n).signaled()).expect("post"));
    };
    datagram_opaque = "datagram SEND, 1 SGE, opaque", DATAGRAM, 1, |fixture, runs| {
        let (sges, to) = ([fixture.sge], fixture.to);
        opaque(fixture, runs, SendWr::send_to(&to, &sges).op);
    };
    datagram_inline_typed = "datagram SEND, 24 bytes inline, typed call", DATAGRAM, 1, |fixture, runs| {
        let to = fixture.to;
        typed(fixture, runs, |send, n, _| send.post(&SendWr::send_to(&to, black_box(&INLINE[..24])).id(n).signaled()).expect("post"));
    };
    datagram_inline_opaque = "datagram SEND, 24 bytes inline, opaque", DATAGRAM, 1, |fixture, runs| {
        let to = fixture.to;
        opaque(fixture, runs, SendWr::send_to(&to, &INLINE[..24]).op);
    };
    datagram_batch_typed = "datagram SEND, batch of 32, typed calls", DATAGRAM, BATCH, |fixture, runs| {
        let to = fixture.to;
        typed_batch(fixture, runs, |batch, n, sge| batch.post(&SendWr::send_to(&to, &[sge]).id(n).signaled()).expect("post"));
    };
    datagram_batch_opaque = "datagram SEND, batch of 32 from an array", DATAGRAM, BATCH, |fixture, runs| {
        let (sges, to) = ([fixture.sge], fixture.to);
        opaque_list(fixture, runs, SendWr::send_to(&to, &sges).op);
    };
    recv_fixed = "post_recv, 1 SGE", Kind::Recv, 1, |fixture, runs| {
        let sge = fixture.sge;
        for _ in 0..runs {
            let sges = [Sge { addr: black_box(sge.addr), ..sge }];
            fixture.qp.recv.post(&RecvWr { wr_id: 7, sges: &sges }).expect("post");
        }
    };
    recv_opaque = "post_recv, 1 SGE, opaque", Kind::Recv, 1, |fixture, runs| {
        let sges = [fixture.sge];
        let wr = RecvWr { wr_id: 7, sges: &sges };
        for _ in 0..runs {
            fixture.qp.recv.post(black_box(&wr)).expect("post");
        }
    };
    recv_batch_opaque = "post_recv, batch of 32 from an array", Kind::Recv, BATCH, |fixture, runs| {
        let sges = [fixture.sge];
        let list = [RecvWr { wr_id: 7, sges: &sges }; BATCH];
        for _ in 0..runs {
            fixture.qp.recv.post_list(black_box(&list)).expect("post");
        }
    };
    recv_batch_fixed = "post_recv, batch of 32", Kind::Recv, BATCH, |fixture, runs| {
        let sge = fixture.sge;
        for _ in 0..runs {
            let sges = [Sge { addr: black_box(sge.addr), ..sge }];
            fixture.qp.recv.post_list(&[RecvWr { wr_id: 7, sges: &sges }; BATCH]).expect("post");
        }
    };
    poll_1 = "poll_cq, one at a time", Kind::Poll { recv: false }, 1, |fixture, runs| {
        for _ in 0..runs {
            let found = black_box(&mut fixture.found).get_mut(..1).expect("one");
            assert_eq!(fixture.cq.poll(found).expect("poll"), 1);
        }
    };
    poll_1_wr_id = "completions, one at a time, wr_id", Kind::Poll { recv: false }, 1, |fixture, runs| {
        let mut sum = 0;
        for _ in 0..runs {
            for done in fixture.cq.completions().take(1) {
                sum += done.expect("completion").wr_id;
            }
        }
        black_box(sum);
    };
    poll_batch = "poll_cq, 32 at a time", Kind::Poll { recv: false }, BATCH, |fixture, runs| {
        for _ in 0..runs {
            let found = black_box(&mut fixture.found);
            assert_eq!(fixture.cq.poll(found).expect("poll"), BATCH);
        }
    };
    poll_batch_wr_id = "completions, 32 at a time, wr_id", Kind::Poll { recv: false }, BATCH, |fixture, runs| {
        let mut sum = 0;
        for _ in 0..runs {
            for done in fixture.cq.completions().take(BATCH) {
                sum += done.expect("completion").wr_id;
            }
        }
        black_box(sum);
    };
    poll_recv_1 = "poll_cq of receives, one at a time", Kind::Poll { recv: true }, 1, |fixture, runs| {
        for _ in 0..runs {
            let found = black_box(&mut fixture.found).get_mut(..1).expect("one");
            assert_eq!(fixture.cq.poll(found).expect("poll"), 1);
        }
    };
    poll_recv_batch = "poll_cq of receives, 32 at a time", Kind::Poll { recv: true }, BATCH, |fixture, runs| {
        for _ in 0..runs {
            let found = black_box(&mut fixture.found);
            assert_eq!(fixture.cq.poll(found).expect("poll"), BATCH);
        }
    };
    floor_write = "WRITE, 1 SGE, floor", HAND, 1, |fixture, runs| {
        let (sge, remote, hand) = (fixture.sge, fixture.remote, &mut fixture.by_hand);
        for _ in 0..runs {
            hand.post_floor(7, &[Sge { addr: black_box(sge.addr), ..sge }], remote);
        }
    };
    hand_write = "WRITE, 1 SGE, by hand", HAND, 1, |fixture, runs| {
        let (sge, remote, hand) = (fixture.sge, fixture.remote, &mut fixture.by_hand);
        for _ in 0..runs {
            hand.post_checked(7, SIGNALED_BY_HAND, &[Sge { addr: black_box(sge.addr), ..sge }], remote).expect("post");
        }
    };
    floor_write_opaque = "WRITE, 1 SGE, floor, opaque", HAND, 1, |fixture, runs| {
        let (wr, hand) = ((7, [fixture.sge], fixture.remote), &mut fixture.by_hand);
        for _ in 0..runs {
            let (wr_id, sges, remote) = black_box(&wr);
            hand.post_floor(*wr_id, sges, *remote);
        }
    };
    hand_write_opaque = "WRITE, 1 SGE, by hand, opaque", HAND, 1, |fixture, runs| {
        let (wr, hand) = ((7, SIGNALED_BY_HAND, [fixture.sge], fixture.remote), &mut fixture.by_hand);
        for _ in 0..runs {
            let (wr_id, flags, sges, remote) = black_box(&wr);
            hand.post_checked(*wr_id, *flags, sges, *remote).expect("post");
        }
    };
    floor_write_3_opaque = "WRITE, 3 SGEs, floor, opaque", Kind::ByHand { blocks: 2 }, 1, |fixture, runs| {
        let (wr, hand) = ((7, [fixture.sge; 3], fixture.remote), &mut fixture.by_hand);
        for _ in 0..runs {
            let (wr_id, sges, remote) = black_box(&wr);
            hand.post_floor(*wr_id, sges, *remote);
        }
    };
    hand_write_3_opaque = "WRITE, 3 SGEs, by hand, opaque", Kind::ByHand { blocks: 2 }, 1, |fixture, runs| {
        let (wr, hand) = ((7, SIGNALED_BY_HAND, [fixture.sge; 3], fixture.remote), &mut fixture.by_hand);
        for _ in 0..runs {
            let (wr_id, flags, sges, remote) = black_box(&wr);
            hand.post_checked(*wr_id, *flags, sges, *remote).expect("post");
        }
    };
    floor_write_batch = "WRITE, batch of 32, floor", HAND, BATCH, |fixture, runs| {
        let (sge, remote, hand) = (fixture.sge, fixture.remote, &mut fixture.by_hand);
        for _ in 0..runs {
            let mut last = 0;
            for n in 0..BATCH as u64 {
                last = hand.head();
                hand.append_floor(n, &[Sge { addr: black_box(sge.addr), ..sge }], remote);
            }
            hand.ring(last);
        }
    };
    hand_write_batch = "WRITE, batch of 32, by hand", HAND, BATCH, |fixture, runs| {
        let (sge, remote, hand) = (fixture.sge, fixture.remote, &mut fixture.by_hand);
        for _ in 0..runs {
            let mut last = 0;
            for n in 0..BATCH as u64 {
                last = hand.head();
                hand.append_checked(n, SIGNALED_BY_HAND, &[Sge { addr: black_box(sge.addr), ..sge }], remote).expect("post");
            }
            hand.ring(last);
        }
    };
    floor_write_batch_opaque = "WRITE, batch of 32, floor, opaque", HAND, BATCH, |fixture, runs| {
        let (list, hand) = ([(7, [fixture.sge], fixture.remote); BATCH], &mut fixture.by_hand);
        for _ in 0..runs {
            let mut last = 0;
            for (wr_id, sges, remote) in black_box(&list) {
                last = hand.head();
                hand.append_floor(*wr_id, sges, *remote);
            }
            hand.ring(last);
        }
    };
    hand_write_batch_opaque = "WRITE, batch of 32, by hand, opaque", HAND, BATCH, |fixture, runs| {
        let (list, hand) = ([(7, SIGNALED_BY_HAND, [fixture.sge], fixture.remote); BATCH], &mut fixture.by_hand);
        for _ in 0..runs {
            let mut last = 0;
            for (wr_id, flags, sges, remote) in black_box(&list) {
                last = hand.head();
                hand.append_checked(*wr_id, *flags, sges, *remote).expect("post");
            }
            hand.ring(last);
        }
    };
    floor_recv = "post_recv, 1 SGE, floor", HAND, 1, |fixture, runs| {
        let (sge, hand) = (fixture.sge, &mut fixture.by_hand);
        for _ in 0..runs {
            hand.post_recv::<false>(7, &Sge { addr: black_box(sge.addr), ..sge }).expect("post");
        }
    };
    hand_recv = "post_recv, 1 SGE, by hand", HAND, 1, |fixture, runs| {
        let (sge, hand) = (fixture.sge, &mut fixture.by_hand);
        for _ in 0..runs {
            hand.post_recv::<true>(7, &Sge { addr: black_box(sge.addr), ..sge }).expect("post");
        }
    };
    floor_poll_1 = "poll_cq, one at a time, floor", Kind::PollByHand, 1, |fixture, runs| {
        for _ in 0..runs {
            let found = black_box(&mut fixture.done).get_mut(..1).expect("one");
            assert_eq!(fixture.by_hand.poll::<false>(found).expect("poll"), 1);
        }
    };
    hand_poll_1 = "poll_cq, one at a time, by hand", Kind::PollByHand, 1, |fixture, runs| {
        for _ in 0..runs {
            let found = black_box(&mut fixture.done).get_mut(..1).expect("one");
            assert_eq!(fixture.by_hand.poll::<true>(found).expect("poll"), 1);
        }
    };
    floor_poll_batch = "poll_cq, 32 at a time, floor", Kind::PollByHand, BATCH, |fixture, runs| {
        for _ in 0..runs {
            assert_eq!(fixture.by_hand.poll::<false>(black_box(&mut fixture.done)).expect("poll"), BATCH);
        }
    };
    hand_poll_batch = "poll_cq, 32 at a time, by hand", Kind::PollByHand, BATCH, |fixture, runs| {
        for _ in 0..runs {
            assert_eq!(fixture.by_hand.poll::<true>(black_box(&mut fixture.done)).expect("poll"), BATCH);
        }
    };
}
